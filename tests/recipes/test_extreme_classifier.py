"""`ExtremeClassifier` as scikit-learn's users use it, and the checks of scikit-learn that can apply to it."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from flax import nnx
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

import candax as cx
from candax.recipes.common.finished import Finished
from candax.recipes.extreme import embedding
from candax.recipes.extreme.scoring import Labels

TEXTS = ["red apple", "green apple", "red car", "fast car"] * 4
KINDS = ["fruit", "fruit", "car", "car"] * 4
# Colour, fruit, car; a text may have several.
LABELS = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 1], [0, 0, 1]] * 4)
# Of scikit-learn's, those that need no long training.
QUICK = (
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimators_overwrite_params",
    "check_estimators_unfitted",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_requires_y_none",
    "check_set_params",
    "check_valid_tag_types",
)


@pytest.fixture(scope="module")
def fitted():
    """In a pipeline, on several labels."""
    return make_pipeline(TfidfVectorizer(), cx.recipes.ExtremeClassifier(dim=4)).fit(TEXTS, csr_array(LABELS))


def test_in_a_pipeline_it_tells_several_labels(fitted):
    found = fitted.predict(["green apple", "fast car"])
    assert isinstance(found, csr_array)
    np.testing.assert_array_equal(found.toarray(), [[1, 1, 0], [0, 0, 1]])
    every = fitted.predict_proba(TEXTS)
    assert every.shape == LABELS.shape
    np.testing.assert_array_equal(every > 0.5, LABELS)
    best = fitted.predict_proba(TEXTS, k=2)
    assert isinstance(best, csr_array)
    assert best.nnz == 2 * len(TEXTS)
    rows, columns = best.nonzero()
    np.testing.assert_allclose(best[rows, columns], every[rows, columns], rtol=1e-5)
    assert np.all(np.sort(every, axis=1)[:, 1] <= best.toarray().max(axis=1))
    assert fitted.score(TEXTS, LABELS) == 1.0


def test_a_number_of_labels_can_be_asked_for(fitted):
    classifier = fitted[-1]
    features = fitted[0].transform(TEXTS)
    classifier.set_params(num_predicted=2)
    try:
        assert (classifier.predict(features).sum(axis=1) == 2).all()
    finally:
        classifier.set_params(num_predicted=None)


def test_it_is_kept_by_pickle_and_by_its_own_file(fitted, tmp_path):
    features, classifier = fitted[0].transform(TEXTS), fitted[-1]
    expected = classifier.predict_proba(features)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(classifier)).predict_proba(features), expected)
    classifier.save(tmp_path)
    loaded = cx.recipes.load(tmp_path)
    np.testing.assert_array_equal(loaded.predict_proba(features), expected)
    assert loaded.get_params() == classifier.get_params()


def test_probabilities_through_an_index_are_those_among_all_that_it_finds(fitted, tmp_path):
    trained, features = fitted[-1].fitted_, csr_array(fitted[0].transform(TEXTS), dtype=np.float32)
    labels = Labels({**trained.about, "probability": "softmax"}, trained.weights, trained.rarity)
    expected, ids = labels.top_k(features, 1)
    found, same = labels.use_index(tmp_path / "index.safetensors").top_k(features, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(same, ids)


def test_one_label_an_example_cross_validated_and_searched():
    pipeline = make_pipeline(TfidfVectorizer(), cx.recipes.ExtremeClassifier(dim=4))
    assert cross_val_score(pipeline, TEXTS, KINDS, cv=2).tolist() == [1.0, 1.0]
    search = GridSearchCV(pipeline, {"extremeclassifier__epochs": [1, 2]}, cv=2).fit(TEXTS, KINDS)
    assert search.predict(["an apple", "a car"]).tolist() == ["fruit", "car"]
    probabilities = search.predict_proba(TEXTS)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


def test_parameters_are_those_of_scikit_learn():
    one = cx.recipes.ExtremeClassifier(dim=8, loss="css")
    other = clone(one).set_params(epochs=2)
    assert other.get_params() == {**one.get_params(), "epochs": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": "x"}, "expected dim to be an integer, got 'x'"),
        ({"dim": 0}, "expected dim of 1 or more, got 0"),
        ({"dropout": 1.0}, "expected a dropout below 1, got dropout 1.0"),
        ({"seed": 2**32}, r"expected a seed below 2\^32, got seed"),
        ({"num_predicted": -1}, "expected num_predicted to be an integer >= 1 or None, got -1"),
        ({"loss": "mine"}, "expected loss to be 'sampled_softmax' or"),
    ],
)
def test_wrong_options_are_refused_by_fit(options, message):
    with pytest.raises(ValueError, match=message):
        cx.recipes.ExtremeClassifier().set_params(**options).fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (csr_array(2 * LABELS), "zeros and ones"),
        (csr_array(LABELS[:3]), "expected a row of y for each of 16 examples, got 3"),
        (np.linspace(0, 1, 16), "Unknown label type"),
        (csr_array((16, 3)), "expected y with labels, got zeros alone for all 16"),
        ([[0], [1, 2]] * 8, "use sklearn.preprocessing.MultiLabelBinarizer"),
        (np.array([["a", "b"]] * 16), "an indicator of zeros and ones, got <U1"),
        (np.array(["a", None] * 8, object), "expected labels that are all texts or all numbers"),
        (np.array(["a", 1] * 8, object), "expected labels that are all texts or all numbers"),
    ],
)
def test_wrong_labels_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        cx.recipes.ExtremeClassifier(dim=2).fit(np.eye(16), labels)


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        (LABELS[:, :2], "expected y of 3 columns, as in fit, got 2"),
        (np.hstack([LABELS, LABELS]), "expected y of 3 columns, as in fit, got 6"),
        (LABELS[:8], "a row of y for each of 16 examples, got 8"),
        (np.vstack([LABELS, LABELS]), "a row of y for each of 16 examples, got 32"),
        (LABELS[:, 0], "Expected 2D array"),
    ],
)
def test_labels_to_score_by_are_those_of_fit(fitted, truth, message):
    with pytest.raises(ValueError, match=message):
        fitted.score(TEXTS, truth)


@pytest.mark.parametrize(("options", "labels"), [({"dim": 0}, LABELS), ({}, 2 * LABELS)])
def test_a_fit_that_fails_changes_nothing(options, labels):
    found = cx.recipes.ExtremeClassifier(dim=2, epochs=1).fit(np.eye(4), [0, 1, 0, 1])
    expected = found.predict(np.eye(4))
    with pytest.raises(ValueError, match="expected"):
        found.set_params(**options).fit(np.eye(16), labels)
    np.testing.assert_array_equal(found.predict(np.eye(4)), expected)


# In a process of its own: the checks give wrong types to the constructor, which the tests' type checks refuse.
CHECKS = """
import sys, warnings
from sklearn.utils import estimator_checks
from candax.recipes import ExtremeClassifier

warnings.simplefilter("ignore")
if sys.argv[1:]:
    for name in sys.argv[1:]:
        getattr(estimator_checks, name)("ExtremeClassifier", ExtremeClassifier(dim=4))
else:
    results = estimator_checks.check_estimator(ExtremeClassifier(dim=8), on_fail=None, on_skip=None)
    bad = [(result["check_name"], result["exception"]) for result in results if result["status"] == "failed"]
    assert not bad, bad
"""


def checked(*names):
    done = subprocess.run([sys.executable, "-c", CHECKS, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_quick_checks_of_scikit_learn():
    checked(*QUICK)


@pytest.mark.slow
def test_all_checks_of_scikit_learn():
    """None fails. (Array API and pandas are skipped: switched off and not installed.)"""
    checked()


def test_dense_features_are_all_read():
    """400 of them, where 256 are the most that are read of some long examples."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    noise, signal = rng.choice([-2.0, 2.0], (200, 300)), np.where(y[:, None] == 1, 1.0, -1.0) * np.ones((1, 100))
    X = np.concatenate([noise, signal], axis=1)
    assert cx.recipes.ExtremeClassifier(dim=4).fit(X, y).score(X, y) > 0.95


def test_examples_longer_than_those_of_training_are_read_whole():
    """Of 30 words, one a text in training: what comes behind the first 8 counts, whatever is asked beside it."""
    X = np.eye(30).repeat(6, axis=0)
    found = cx.recipes.ExtremeClassifier(dim=30, epochs=20, num_sampled=30).fit(X, np.arange(30).repeat(6))
    asked = np.zeros((3, 30))
    asked[:, :9] = 1
    asked[1:, 20] = 1
    asked[2, 21:23] = 1
    probabilities = found.predict_proba(asked)
    assert (probabilities[1:, 20] > 5 * probabilities[0, 20]).all()
    assert (probabilities[2, 21:23] > 4 * probabilities[0, 21:23]).all()
    for row in range(3):
        np.testing.assert_allclose(found.predict_proba(asked[[row]])[0], probabilities[row], rtol=1e-5)


def test_examples_of_all_lengths_are_embedded_in_parts_of_bounded_size(monkeypatch):
    """The longest, which alone is more than a part, and those beside it: each is what it is by itself."""
    rng = np.random.default_rng(0)
    model = cx.models.Classifier(
        cx.models.SparseMLP(3000, 4, rngs=nnx.Rngs(0)), cx.Head(5, 4, rngs=nnx.Rngs(1))
    )  # fmt: skip
    X = csr_array(rng.normal(size=(40, 3000)) * (rng.random((40, 3000)) < rng.choice([0, 0.01, 0.1, 1], (40, 1))))
    shapes = []
    monkeypatch.setattr(embedding, "_MOST_NUMBERS", 4 * 512)
    flat = embedding._flat
    monkeypatch.setattr(embedding, "_flat", lambda *args: shapes.append(args[1:]) or flat(*args))
    bag, bias = np.asarray(model.encoder.bag[...]), np.asarray(model.encoder.bias[...])
    length = np.linalg.norm(X.toarray(), axis=1, keepdims=True)
    expected = np.maximum(X.toarray() / np.where(length > 0, length, 1) @ bag + bias, 0)
    np.testing.assert_allclose(embedding.embedded(model, X), expected, atol=1e-6)
    assert set(shapes) <= {(64, 256), (64, 512), (64, 3000)}
    assert (64, 3000) in shapes


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e200, 1e-200])
def test_features_of_any_size_are_learned_alike(scale):
    """Rows are scaled to length 1, also those whose squares float32 cannot hold; rows of zeros stay zeros."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 64)
    X = np.eye(3).repeat(4, axis=1)[y] + rng.normal(size=(64, 12))
    X[:5] = 0
    expected = cx.recipes.ExtremeClassifier(dim=4, epochs=2).fit(X, y).predict_proba(X)
    for dtype in (np.float64, np.float32) if 1e-38 < scale < 1e38 else (np.float64,):
        scaled = (scale * X).astype(dtype)
        found = cx.recipes.ExtremeClassifier(dim=4, epochs=2).fit(scaled, y).predict_proba(scaled)
        np.testing.assert_allclose(found, expected, atol=2e-3)


def test_as_many_labels_as_classes_and_numbers_of_numpy(tmp_path):
    rng = np.random.default_rng(0)
    Y = np.zeros((32, 16), bool)
    for row in Y:
        row[rng.permutation(16)[:10]] = True
    X = rng.random((32, 20))
    found = cx.recipes.ExtremeClassifier(epochs=1).set_params(dim=np.int64(4)).fit(X, Y)
    found.save(tmp_path)
    assert cx.recipes.load(tmp_path).predict(X).shape == (32, 16)


@pytest.mark.parametrize("classes", [[False, True], [1.0, 2.0], [0.0, 5.0], [3, 4], ["a", "b"], np.int8([3, 4])])
def test_classes_of_any_kind_are_what_they_were_after_saving(classes, tmp_path):
    X, y = np.eye(4), np.tile(classes, 2)
    found = cx.recipes.ExtremeClassifier(dim=2, epochs=1).fit(X, y)
    found.save(tmp_path)
    again = cx.recipes.load(tmp_path)
    assert again.classes_.dtype == found.classes_.dtype
    np.testing.assert_array_equal(again.classes_, np.unique(y))


@pytest.mark.parametrize(("names", "kind"), [(["a", "b" * 5000], object), ([7, 3], np.int64)])
def test_names_of_data_sets_take_the_memory_they_need(names, kind, tmp_path):
    about = {"options": {}, "multilabel": True, "num_features": 1, "num_classes": 2}
    found = cx.recipes.ExtremeClassifier.of(Finished(tmp_path, "extreme", about, {}, {"classes": names}, {}))
    assert (found.classes_.dtype, found.classes_.tolist()) == (kind, names)
