"""Figure 3 of LNS: distributions are those that samplers draw from, and the study leaves what it measured."""

import dataclasses

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

import candax as cx
from candax import samplers
from candax.diagnostics import negative_distributions as figures
from candax.experiments import lns_figure3 as study
from candax.experiments.lns_figure3 import LNSFigure3, lns_figure3

NUM_CLASSES, PADDING, DIM, DRAWS = 30, 2, 16, 2000


def make_query(labels):
    """Classes of different lengths with biases, two padding rows of NaN, and embeddings near some of them."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(NUM_CLASSES + PADDING, DIM)) * rng.uniform(0.5, 2, (NUM_CLASSES + PADDING, 1))
    biases, counts = rng.normal(size=NUM_CLASSES + PADDING), rng.integers(1, 50, NUM_CLASSES + PADDING)
    embeddings = vectors[:3] + 0.7 * rng.normal(size=(3, DIM))
    vectors[NUM_CLASSES:], biases[NUM_CLASSES:] = np.nan, np.nan
    arrays = (jnp.asarray(array, jnp.float32) for array in (vectors, biases, counts))
    classes = cx.Classes(*arrays, jnp.int32(NUM_CLASSES))
    return cx.Query(jnp.asarray(embeddings, jnp.float32), jnp.asarray(labels), classes)


ONE_LABEL = [[3], [4], [5]]
LABELS = [[3, 7, 2], [4, -1, -1], [5, 9, -1]]


def drawn_with_new_indexes(query, by, **arguments):
    """The share of draws, each from tables with hash functions of its own, that find a class."""
    sampler = samplers.lsh(by, capacity=None, **arguments)

    @jax.jit
    def inclusions(keys):
        def of(key):
            key_index, key_draw = jax.random.split(key)
            candidates = sampler.sample(sampler.init(key_index, query.classes), key_draw, query)
            found = jnp.zeros((3, NUM_CLASSES + PADDING))
            return found.at[jnp.arange(3)[:, None], candidates.ids].max(candidates.mask.astype(jnp.float32))

        return jnp.mean(jax.lax.map(of, keys, batch_size=100), axis=0)

    return np.asarray(inclusions(jax.random.split(jax.random.key(0), DRAWS)), np.float64)


@pytest.mark.parametrize(
    ("by", "near", "hash_", "num_hashes"),
    [
        ("embedding", "logit", samplers.simhash(), 4),
        ("label", "vector", samplers.simhash(), 4),
        ("embedding", "vector", samplers.dwta(8), 2),
    ],
)
def test_the_formula_is_what_lsh_draws_over_rebuilt_indexes(by, near, hash_, num_hashes):
    query = make_query(ONE_LABEL)
    arguments = {"hash": hash_, "near": near, "num_hashes": num_hashes, "num_tables": 5}
    inclusion = figures.lsh_inclusion(query, by=by, **arguments)
    share = drawn_with_new_indexes(query, by, **arguments)
    errors = np.sqrt(inclusion * (1 - inclusion) / DRAWS)
    assert (np.abs(share - inclusion) < 5 * errors + 2 / DRAWS).all()
    # As distributions they agree, and are far from a uniform one and from that of another K: the test could fail.
    q, drawn = (figures.without_labels(weights, query) for weights in (inclusion, share))
    distance = figures.total_variation(q, drawn).max()
    assert distance < 0.04
    other = figures.lsh_inclusion(query, by=by, **{**arguments, "num_hashes": num_hashes + 2})
    uniform = figures.static_counts(samplers.uniform(1), query)
    for weights in (other, uniform):
        assert figures.total_variation(q, figures.without_labels(weights, query)).max() > 3 * distance


def test_several_labels_are_queries_of_one_example():
    query = make_query(LABELS)
    arguments = {"hash": samplers.simhash(), "near": "vector", "num_hashes": 4, "num_tables": 5}
    inclusion = figures.lsh_inclusion(query, by="label", **arguments)
    share = drawn_with_new_indexes(query, "label", **arguments)
    # They share their hash functions, so that together they find less than independent ones would.
    assert np.abs(share - inclusion).max() < 0.1
    assert inclusion[0].sum() > share[0].sum() > 0.9 * inclusion[0].sum()
    alone = [
        figures.lsh_inclusion(dataclasses.replace(query, labels=query.labels[:, i : i + 1]), by="label", **arguments)
        for i in range(3)
    ]
    np.testing.assert_allclose(inclusion[0], 1 - np.prod([1 - part[0] for part in alone], axis=0), atol=1e-6)
    np.testing.assert_allclose(inclusion[1], alone[0][1], atol=1e-6)


def test_every_distribution_is_one_over_the_classes_that_are_no_labels():
    query = make_query(LABELS)
    of_model = figures.without_labels(figures.model_weights(query), query)
    of_counts = figures.without_labels(figures.static_counts(samplers.unigram(1, power=1.0), query), query)
    uniform = figures.without_labels(figures.static_counts(samplers.uniform(7), query), query)
    for q in (of_model, of_counts, uniform):
        np.testing.assert_allclose(q.sum(axis=1), 1)
        assert (q[:, NUM_CLASSES:] == 0).all()
        assert (q[0, [3, 7, 2]] == 0).all()
        assert (q[1, [0, 3, 7]] > 0).all()
    logits = np.asarray(query.embeddings @ query.classes.vectors.T + query.classes.biases, np.float64)
    assert np.log(of_model[1, 0] / of_model[1, 1]) == pytest.approx(logits[1, 0] - logits[1, 1], abs=1e-4)
    counts = np.asarray(query.classes.counts)
    assert of_counts[2, 0] / of_counts[2, 1] == pytest.approx(counts[0] / counts[1], rel=1e-5)
    assert uniform[0, 0] == pytest.approx(1 / 27)
    with pytest.raises(ValueError, match="fit into 32 bits"):
        figures.lsh_inclusion(query, by="label", hash=samplers.simhash(), near="vector", num_hashes=33, num_tables=1)
    with pytest.raises(ValueError, match="do not depend on the draw"):
        figures.static_counts(samplers.unigram(4, replacement=False), query)
    with pytest.raises(ValueError, match="one shared candidate set, got 3 groups"):
        figures.static_counts(samplers.uniform(1, num_groups=None), query)


def test_distances():
    p, q = np.array([[0.2, 0.8, 0.0], [1.0, 0.0, 0.0]]), np.array([[0.5, 0.3, 0.2], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(figures.total_variation(p, q), [np.abs(p[0] - q[0]).sum() / 2, 1])
    np.testing.assert_allclose(figures.by_rank(q, np.argsort(-p, axis=1)), [0.15, 0.25, 0.1])


def test_the_study_leaves_what_it_measured(tmp_path):
    rows = lns_figure3(LNSFigure3(quick=True, out=tmp_path))
    times = [f"after {steps} steps" for steps in (0, 80)]
    before, after = ({row["distribution"]: row for row in rows if row["when"] == when} for when in times)
    assert list(before)[:4] == ["target", "uniform", "log_uniform", "unigram"]
    assert len(before) == len(after) == 4 + 2 * (2 + 2 + 1)
    assert before["target"]["distance"] == after["target"]["distance"] == 0
    assert before["uniform"]["distance"] < 0.1  # an untrained model prefers nothing
    assert after["uniform"]["distance"] > 0.3
    near = after["LSH embedding, SimHash near logit, K = 32"]
    assert near["distance"] < after["uniform"]["distance"]
    heights = after["target"]["curve"]["probability"]
    assert heights == sorted(heights, reverse=True)
    assert before["uniform"]["found"] is None
    assert 0 < after["LSH label, DWTA, K = 5"]["found"] < 20
    assert after["uniform"]["on_top"] == pytest.approx(1, abs=1e-5)  # 100 of 20 classes
    assert matplotlib.image.imread(tmp_path / "lns_figure3.png").shape[1] > 1000


def test_it_trains_with_a_sampler_too_and_refuses_bad_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "_weights", lambda settings: {"target": figures.model_weights})
    small = {"quick": True, "num_examples": 4, "out": tmp_path}
    assert len(lns_figure3(LNSFigure3(sampler="log_uniform", epochs=1, **small))) == 2
    for changed, message in (
        ({"num_examples": 1}, "--num-examples of 2 or more, got --num-examples 1"),
        ({"simhash": (8, 0)}, "--simhash of 1 or more"),
        ({"epochs": 0.0}, "--epochs above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            lns_figure3(LNSFigure3(**{**small, **changed}))
