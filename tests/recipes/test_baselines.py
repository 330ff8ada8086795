"""What needs no training is what a loop over examples gives."""

import jax
import numpy as np
import pytest
from flax import nnx
from scipy.sparse import csr_array

import candax as cx
from candax import data, models
from candax.data import Dataset, Examples
from candax.recipes.extreme import baselines
from candax.recipes.extreme.baselines import (
    best_power,
    best_shares,
    measure_mixture,
    most_frequent,
    neighbour_shares,
)
from candax.recipes.extreme.train import Evaluate, Train, evaluate, train
from candax.recipes.predict.loading import load


@pytest.fixture
def dataset():
    rng = np.random.default_rng(0)

    def examples(number):
        features = rng.random((number, 12)) * (rng.random((number, 12)) < 0.5)
        labels = rng.random((number, 9)) < 0.15
        labels[np.arange(number), rng.integers(0, 9, number)] = True
        return Examples(csr_array(features.astype(np.float32)), csr_array(labels))

    return Dataset("random", examples(40), examples(25))


def precision(dataset, scores, k):
    """Of the k classes with the largest scores; equal ones by number, classes without a score are none."""
    hits = []
    for of_example, truth in zip(scores, dataset.test.labels.toarray(), strict=True):
        best = np.argsort(-of_example, kind="stable")[:k]
        hits.append(sum(truth[c] > 0 for c in best if of_example[c] > 0) / k)
    return np.mean(hits)


def test_most_frequent_labels(dataset):
    counts = np.asarray(dataset.train.labels.sum(axis=0)).ravel()
    found = most_frequent(dataset)
    for k in (1, 3, 5):
        assert found[f"p_at_{k}"] == pytest.approx(precision(dataset, np.tile(counts, (25, 1)), k))


@pytest.mark.parametrize(("number", "power", "parts"), [(1, 1, 1), (4, 2, 4), (4, 2, 1), (20, 1, 3), (100, 4, 1)])
def test_labels_of_nearest_neighbours(dataset, number, power, parts, monkeypatch):
    monkeypatch.setattr(baselines, "_SEARCHED", 40 // parts)
    monkeypatch.setattr(baselines, "_AT_A_TIME", 7)
    train, test = (part.features.toarray().astype(np.float64) for part in (dataset.train, dataset.test))
    cosines = (test / np.linalg.norm(test, axis=1, keepdims=True)) @ (
        train / np.linalg.norm(train, axis=1, keepdims=True)
    ).T
    near = np.argsort(-cosines, axis=1)[:, :number]
    votes = np.zeros((25, 9))
    for row, chosen in enumerate(near):
        for i in chosen:
            votes[row] += cosines[row, i] ** power * (dataset.train.labels.toarray()[i] > 0)
        votes[row] /= sum(cosines[row, i] ** power for i in chosen)
    shares = neighbour_shares(dataset, number=number, power=power)
    np.testing.assert_allclose(shares.toarray(), votes, atol=1e-6)
    found = best_shares(dataset, shares)
    for k in (1, 3, 5):
        assert found[f"p_at_{k}"] == pytest.approx(precision(dataset, votes, k))


def test_the_best_power_is_that_of_the_highest_precision(dataset):
    by_power = {power: best_shares(dataset, neighbour_shares(dataset, power=power))["p_at_5"] for power in (2, 4, 8)}
    assert by_power[best_power(dataset)] == max(by_power.values())


def test_a_mixture_ranks_by_mean_probabilities_and_shares(dataset):
    trained = []
    for seed in (0, 1):
        rngs = nnx.Rngs(seed)
        encoder = models.SparseMLP(dataset.num_features, 4, linear=True, rngs=rngs)
        trained.append(models.Classifier(encoder, cx.Head(dataset.num_classes, 4, rngs=rngs)))
        trained[-1].head.vectors[...] *= 30
    shares = neighbour_shares(dataset, number=5)
    features = dataset.test.features.toarray()
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    logits = [features @ of.encoder.bag[...] @ of.head.vectors[...].T + of.head.biases[...] for of in trained]
    for loss, of in [(cx.losses.one_vs_all, jax.nn.sigmoid), (None, jax.nn.softmax)]:
        expected = np.mean([of(o) for o in logits], axis=0) + 0.3 * shares.toarray()
        found = measure_mixture(trained, dataset, loss=loss, shares=shares, weight=0.3)
        for k in (1, 3, 5):
            assert found[f"p_at_{k}"] == pytest.approx(precision(dataset, expected, k))


def test_a_sampler_starts_with_the_vectors_that_training_starts_from(dataset):
    keeping = cx.samplers.uniform(4)._replace(init=lambda key, classes: (classes.vectors, classes.biases))
    training = Train(dim=8, batch_size=8, steps=2).training(dataset)
    head = training.make(keeping, cx.losses.sampled_softmax)[0].head
    for kept, found in zip(head.state.get_value(), (head.vectors[...], head.biases[...]), strict=True):
        np.testing.assert_array_equal(kept, found)


def test_models_and_neighbours_of_three_classes_are_measured(tmp_path):
    lines = [f"{i % 3} {i % 5}:0.5 {17 + i % 3}:1" for i in range(40)]
    (tmp_path / "train.txt").write_text("\n".join(["40 20 3", *lines]) + "\n")
    # More features than any example of training has, of one size, which is small: what tells the class comes last.
    many = " ".join(f"{i}:1e-25" for i in range(5, 17))
    longer = [f"{i % 3} {many} {17 + i % 3}:1e-25" for i in range(12)]
    (tmp_path / "test.txt").write_text("\n".join(["52 20 3", *lines, *longer]) + "\n")
    rows = train(Train(dataset=str(tmp_path), quick=True, out=tmp_path / "run"))
    assert rows[-1]["method"].endswith("neighbours")
    assert rows[-1]["p_at_1"] > 0.9
    test = data.load(str(tmp_path)).test
    found = evaluate(Evaluate(tmp_path / "run"))
    assert found["p_at_1"] == rows[2]["p_at_1"] == load(tmp_path / "run").score(test.features, test.labels)
    assert found["p_at_1"] > 0.9
