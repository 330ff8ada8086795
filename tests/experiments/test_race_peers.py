"""Output layers without candidates: probabilities that sum to 1, and losses that are those of the labels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from scipy.sparse import csr_array

import candax as cx
from candax import models
from candax.data import Dataset, Examples
from candax.experiments import race_tasks
from candax.experiments.race import Race, race
from candax.experiments.race_peers import MACH, PEERS, Behind, Start, huffman
from candax.recipes.extreme import problem as extreme
from tests.commands import fails, write_dataset, write_words

C, DIM = 40, 16


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    counts = rng.zipf(1.5, C).astype(float) + 0.1
    labels = np.stack([rng.permutation(C)[:3] for _ in range(8)]).astype(np.int32)
    labels[0, 1:] = -1
    labels[1] = -1
    vectors = rng.normal(size=(C, DIM)).astype(np.float32)
    h = jnp.asarray(rng.normal(size=(8, DIM)), jnp.float32)
    return Start(vectors, counts, lambda: [labels], 0), h, jnp.asarray(labels)


@pytest.mark.parametrize("name", PEERS)
def test_probabilities_sum_to_1_and_the_loss_is_that_of_the_labels(name, problem):
    start, h, labels = problem
    peer = PEERS[name](start)
    logs = peer.log_probs(h)
    assert logs.shape == (8, C)
    np.testing.assert_allclose(jnp.sum(jnp.exp(logs), axis=1), 1, rtol=1e-4)
    each = jnp.where(labels >= 0, jnp.take_along_axis(logs, labels, axis=1), 0).sum(axis=1)
    expected = -each / jnp.maximum((labels >= 0).sum(axis=1), 1)
    np.testing.assert_allclose(peer.nll(h, labels), expected, rtol=1e-4, atol=1e-6)
    losses = peer(h, labels)
    assert losses[1] == 0
    if name != "mach":
        np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PEERS)
def test_other_examples_than_those_of_training_are_measured_exactly(name, problem):
    start, h, _ = problem
    rarest = np.argsort(start.counts, kind="stable")[:8].astype(np.int32)
    peer = PEERS[name](start._replace(labels=lambda: [np.argmax(start.counts).reshape(1, 1)]))
    expected = -jnp.take_along_axis(peer.log_probs(h), rarest[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(peer.nll(h, jnp.asarray(rarest[:, None])), expected, rtol=1e-4)


@pytest.mark.parametrize("name", PEERS)
def test_at_zero_the_probabilities_are_the_frequencies(name, problem):
    start, h, _ = problem
    logs = PEERS[name](start).log_probs(jnp.zeros_like(h))
    frequencies = start.counts / start.counts.sum()
    if name == "mach":  # they share buckets
        assert np.corrcoef(np.exp(logs[0]), frequencies)[0, 1] > 0.8
    else:
        np.testing.assert_allclose(np.exp(logs[0]), frequencies, rtol=1e-3)


def test_mach_sums_the_cross_entropies_of_its_hash_functions(problem):
    start, h, labels = problem
    peer = MACH(start)
    logs = jax.nn.log_softmax(jnp.einsum("nd,rbd->nrb", h, peer.vectors[...]) + peer.biases[...])
    expected = [
        -np.mean([sum(logs[n, r, peer.buckets[...][r, c]] for r in range(8)) for c in row if c >= 0] or [0])
        for n, row in enumerate(np.asarray(labels))
    ]
    np.testing.assert_allclose(peer(h, labels), expected, rtol=1e-4)


@pytest.mark.parametrize("name", PEERS)
def test_a_step_lowers_the_loss(name, problem):
    start, h, labels = problem
    peer = PEERS[name](start)
    before, grads = cx.value_and_grad(lambda peer: jnp.mean(peer(h, labels)))(peer)
    cx.Optimizer(peer, optax.sgd(0.01)).update(peer, grads)
    assert jnp.mean(peer(h, labels)) < before


def test_huffman_s_mean_way_is_the_shortest():
    counts = np.array([8, 4, 2, 1, 1])
    nodes, sides = huffman(counts)
    lengths = (nodes >= 0).sum(axis=1)
    assert lengths.tolist() == [1, 2, 3, 4, 4]
    assert (nodes[:, 0] == 0).all()
    assert ((sides != 0) == (nodes >= 0)).all()


@pytest.mark.parametrize("task", ["extreme", "language"])
def test_they_take_part_in_the_race(task, tmp_path):
    dataset = write_dataset(tmp_path / "data") if task == "extreme" else write_words(tmp_path)
    rows = race(Race(task=task, dataset=str(dataset), quick=True, samplers=(), peers=tuple(PEERS), out=tmp_path))
    assert [row["method"] for row in rows] == ["full_softmax", *PEERS]
    assert all(row["best"] > 0 for row in rows)


class Coordinates(nnx.Module):
    """A class for each coordinate of an embedding."""

    def log_probs(self, h):
        return jax.nn.log_softmax(h)


def test_they_are_measured_on_the_examples_and_features_that_the_others_have(monkeypatch):
    """Points of the curve are of fixed test examples, here 256; training cuts examples to 2 features."""

    def examples(number, width):
        rng = np.random.default_rng(number)
        features, labels = np.zeros((number, 30), np.float32), np.zeros((number, C), bool)
        features[np.arange(number)[:, None], np.argsort(rng.random((number, 30)), axis=1)[:, :width]] = 1
        labels[np.arange(number), rng.integers(C, size=number)] = True
        return Examples(csr_array(features), csr_array(labels))

    dataset = Dataset("made", examples(64, 2), examples(300, 12))
    monkeypatch.setattr(race_tasks, "curve_rows", functools.partial(extreme.curve_rows, number=256))
    training = extreme.problem(dataset, batch_size=8, dim=C, learning_rate=0.1)
    peers = race_tasks.TASKS["extreme"].peers(dataset, training)
    encoder = models.SparseMLP(30, C, linear=True, rngs=nnx.Rngs(0))
    behind = Behind(encoder, Coordinates())
    best = np.argmax(dataset.test.features @ np.asarray(encoder.bag[...]), axis=1)
    hits = dataset.test.labels.toarray()[np.arange(300), best]
    assert peers.measure(behind)["p_at_1"] == pytest.approx(hits.mean())
    assert peers.on_the_way(behind)["p_at_1"] == pytest.approx(hits[extreme.curve_rows(dataset, 256)].mean())
    assert hits[extreme.curve_rows(dataset, 256)].mean() != hits.mean()


def test_not_where_they_cannot(capsys, tmp_path):
    line = fails(capsys, "experiment", "race", "--task", "links", "--peers", "mach", "--out", tmp_path)
    assert "--task extreme or language" in line
