"""Flat batches hold the same examples as padded ones, and give the same embeddings and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from data_helpers import random_examples
from flax import nnx
from hypothesis import given, settings, strategies as st
from scipy.sparse import csr_array

import candax as cx
from candax.data.flat import flatten, widest
from tests.training import problems


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 12))
def test_the_same_examples_as_padded(seed: int, batch_size: int, max_features: int) -> None:
    examples = random_examples(seed)
    padded = cx.data.Batches(examples, batch_size, seed, max_features, 3)
    flat = cx.data.Batches(examples, batch_size, seed, max_features, 3, flat=True)
    for index in range(padded.batches_per_epoch):
        one, other = padded[1, index], flat[1, index]
        assert isinstance(other, cx.data.FlatBatch)
        assert other.feature_ids.shape == (flat.num_slots,)
        assert [array.dtype for array in other] == [np.int32, np.float32, np.int32, np.int32, np.int32]
        np.testing.assert_array_equal(one.labels, other.labels)
        assert (np.diff(other.feature_examples) >= 0).all()
        real = other.feature_ids >= 0
        assert (other.feature_values[~real] == 0).all()
        for i in range(batch_size):
            mine = real & (other.feature_examples == i)
            kept = one.feature_ids[i][one.feature_ids[i] >= 0]
            np.testing.assert_array_equal(other.feature_ids[mine], kept)
            np.testing.assert_array_equal(other.feature_values[mine], one.feature_values[i][: len(kept)])


def test_without_room_the_longest_examples_are_cut() -> None:
    counts = np.array([3, 9, 1, 7])
    assert widest(counts, 20, 20) == 20
    assert widest(counts, 20, 19) == 8
    assert widest(counts, 20, 10) == 3
    assert widest(counts, 20, 4) == 1
    with pytest.raises(ValueError, match="slots for at least one feature of each of 4 examples, got 3"):
        widest(counts, 20, 3)
    examples = random_examples(3, points=40)
    batches = cx.data.Batches(examples, 8, 0, flat=True)
    before = batches[0, 0]
    batches.num_slots = int((before.feature_ids >= 0).sum()) - 2
    after = batches[0, 0]
    lengths = [np.bincount(b.feature_examples[b.feature_ids >= 0], minlength=8) for b in (before, after)]
    assert lengths[1].sum() <= batches.num_slots
    assert lengths[1].max() < lengths[0].max()
    np.testing.assert_array_equal(lengths[1], np.minimum(lengths[0], lengths[1].max()))


def test_the_same_training_as_padded() -> None:
    examples = random_examples(5, points=48)
    tables = []
    for flat in (False, True):
        batches = cx.data.Batches(examples, 8, 0, flat=flat)
        rngs = nnx.Rngs(0)
        encoder = cx.models.SparseMLP(examples.num_features, 8, rngs=rngs)
        sampler, loss = cx.samplers.uniform(4), cx.losses.css
        head = cx.Head(examples.num_classes, 8, sampler=sampler, loss=loss, rngs=rngs)
        model = cx.models.Classifier(encoder, head)
        start = jax.tree.map(np.array, problems.tables(model))
        cx.training.fit(model, cx.Optimizer(model, optax.sgd(0.5)), batches, num_steps=4, progress=False)
        tables.append(problems.tables(model))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *tables)
    moved = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), tables[1], start)
    assert min(jax.tree.leaves(moved)) > 1e-3


def test_labels_without_a_slot_stand_in_pairs() -> None:
    examples = random_examples(3)
    batches = cx.data.Batches(examples, 4, 0, 8, 1, flat=True)
    in_all = 0
    for index in range(batches.batches_per_epoch):
        batch = batches[0, index]
        assert isinstance(batch, cx.data.FlatBatch)
        rows = batches.rows(0, index)
        for i, row in enumerate(rows):
            more = batch.more_labels[batch.more_labels[:, 0] == i, 1]
            in_all += len(more)
            kept = batch.labels[i][batch.labels[i] >= 0]
            expected = np.flatnonzero(examples.labels[[row]].toarray()[0])
            assert sorted([*kept, *more]) == expected.tolist()
        assert (batch.more_labels[batch.more_labels[:, 0] < 0] == -1).all()
    assert in_all > 0
    roomy = cx.data.Batches(examples, 4, 0, 8, 1000, flat=True)
    assert roomy[0, 0].more_labels.shape == (0, 2)


def test_shapes_grow_where_pairs_are_more_than_expected() -> None:
    ids = np.zeros((2, 1), np.int32)
    pairs = np.ones((5, 2), np.int32)
    assert flatten(ids, np.ones((2, 1), np.float32), ids, pairs, 4, 2).more_labels.shape == (8, 2)


def test_one_example_with_most_of_the_labels_gives_no_batch_another_shape() -> None:
    rng = np.random.default_rng(0)
    labels = np.zeros((512, 600), bool)
    labels[np.arange(512), rng.integers(0, 600, 512)] = True
    labels[7] = True  # 600 labels, where the others have one
    examples = cx.data.Examples(csr_array(np.eye(512, dtype=np.float32)), csr_array(labels))
    batches = cx.data.Batches(examples, 16, 0, max_labels=2, flat=True)
    made = [batches[epoch, index] for epoch in range(2) for index in range(batches.batches_per_epoch)]
    assert max((batch.more_labels[:, 0] >= 0).sum() for batch in made) == 598
    assert len({tuple(array.shape for array in batch) for batch in made}) == 1
