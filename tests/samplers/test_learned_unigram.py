"""Learned unigram: what the memory holds after updates, decay, and draws that agree with the memory at every step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.base import Query, Sampler
from candax.samplers import learned_unigram
from candax.samplers.learned_unigram import LabelMemory
from candax.testing.statistics import check_mean
from tests.samplers.stated import expected_counts

NUM_CLASSES = 12
CLASSES = cx.Classes(jnp.zeros((NUM_CLASSES + 2, 2)), None, None, jnp.int32(NUM_CLASSES))


def ask(labels: object) -> Query:
    labels = jnp.asarray(labels, jnp.int32)
    return cx.Query(jnp.zeros((labels.shape[0], 2)), labels, CLASSES)


def learn(sampler: Sampler, batches: list[list[list[int]]], seed: int = 0) -> LabelMemory:
    state = sampler.init(jax.random.key(0), CLASSES)
    for i, labels in enumerate(batches):
        key = jax.random.fold_in(jax.random.key(seed), i)
        state = sampler.update(state, key, ask(labels), jnp.arange(1), jnp.zeros((1, 2)))
    return state


def test_frequencies_of_what_was_seen() -> None:
    sampler = learned_unigram(6, memory=16, uniform_share=0.25)
    np.testing.assert_allclose(
        expected_counts(sampler, ask([[0]]), learn(sampler, []))[0], [0.5] * 12 + [0] * 2, rtol=1e-6
    )
    state = learn(sampler, [[[3, 5], [3, -1]], [[-1, -1], [11, 13]]])
    assert int(state.seen) == 4  # a label that is no valid class is not remembered
    seen = np.zeros(14)
    seen[[3, 5, 11]] = [2, 1, 1]
    wanted = 6 * (0.25 / 12 * (np.arange(14) < 12) + 0.75 * seen / 4)
    np.testing.assert_allclose(expected_counts(sampler, ask([[0]]), state)[0], wanted, rtol=1e-6)
    refreshed = sampler.refresh(state, jax.random.key(0), CLASSES)
    np.testing.assert_array_equal(refreshed.slots, state.slots)


def remembered(sampler: Sampler, batch: int, length: int) -> tuple[np.ndarray, int]:
    """How often label t of a stream of distinct labels is remembered, over 4000 runs."""
    classes = cx.Classes(jnp.zeros((length, 2)), None, None, jnp.int32(length))
    stream = jnp.arange(length, dtype=jnp.int32).reshape(-1, batch, 1)

    def run(key: jax.Array) -> jax.Array:
        state = sampler.init(key, classes)
        for i, labels in enumerate(stream):
            query = cx.Query(jnp.zeros((batch, 2)), labels, classes)
            state = sampler.update(state, jax.random.fold_in(key, i), query, jnp.arange(1), jnp.zeros((1, 2)))
        return jnp.zeros(length).at[state.slots].add(1.0, mode="drop")

    runs = 4000
    return np.asarray(jnp.mean(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(7), runs)), axis=0)), runs


@pytest.mark.parametrize("batch", [1, 6])
def test_without_decay_every_label_is_remembered_alike(batch: int) -> None:
    share, runs = remembered(learned_unigram(1, memory=4), batch, 18)
    np.testing.assert_allclose(share.sum(), 4, rtol=1e-6)
    assert np.all(np.abs(share - 4 / 18) < 5 * np.sqrt(4 / 18 / runs))


@pytest.mark.parametrize("batch", [1, 6])
def test_decay_is_by_label(batch: int) -> None:
    """Once the horizon of 8 is full, a label is stored with probability 4/8 and survives each later one with 7/8."""
    share, runs = remembered(learned_unigram(1, memory=4, decay=0.875), batch, 18)
    wanted = 0.5 * 0.875 ** (17 - np.arange(8, 18))
    assert np.all(np.abs(share[8:] - wanted) < 5 * np.sqrt(wanted / runs))
    assert share[0] < 0.2


def test_draws_agree_with_the_memory_at_every_step() -> None:
    """Old memory, changed stream: counts are of what is drawn."""
    sampler = learned_unigram(4, memory=8, decay=0.9, uniform_share=0.5)
    for number in (0, 1, 5):
        state = learn(sampler, [[[1, 2], [1, 7]]] * number + [[[9, -1], [9, 0]]])

        def weights(key: jax.Array, state: LabelMemory = state) -> jax.Array:
            found = sampler.sample(state, key, ask([[3]]))
            weight = jnp.exp(-found.log_expected_count[0])
            return jnp.sum(jnp.where(found.ids[0][:, None] == jnp.arange(14), weight[:, None], 0.0), axis=0)

        check_mean(weights, np.arange(14) < NUM_CLASSES, delta=0.02, seed=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_sampled": 0}, "num_sampled to be an integer >= 1"),
        ({"num_sampled": 2, "memory": 0}, "memory to be an integer >= 1"),
        ({"num_sampled": 2, "uniform_share": 0.0}, "uniform_share"),
        ({"num_sampled": 2, "memory": 10, "decay": 0.5}, "1 - 1/memory = 0.9 <= decay"),
        ({"num_sampled": 2, "decay": 1.0}, "decay"),
        ({"num_sampled": 2, "num_groups": 0}, "num_groups to be an integer >= 1"),
    ],
)
def test_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learned_unigram(**arguments)


def test_what_is_left_of_fewer_classes_keeps_its_place_in_the_stream():
    sampler = cx.samplers.learned_unigram(4, memory=8)
    many, few = (cx.Classes(jnp.zeros((10, 2)), None, None, jnp.int32(number)) for number in (10, 6))
    state = sampler.init(jax.random.key(0), many)
    query = cx.Query(jnp.zeros((8, 2)), jnp.array([[1], [2], [3], [9], [8], [1], [4], [7]]), many)
    for seed in range(5):
        state = sampler.update(state, jax.random.key(seed), query, jnp.zeros(0, jnp.int32), jnp.zeros((0, 2)))
    left = sampler.refresh(state, jax.random.key(0), few)
    assert int(left.seen) == int(state.seen) == 40
    assert set(left.slots.tolist()) == {slot for slot in state.slots.tolist() if slot < 6}
