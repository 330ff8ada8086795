"""Recall is lost where tables do not follow the classes, and only there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.diagnostics import measure_staleness
from tests.training import problems

SOURCE = problems.Source()
MEASURED = [problems.Source(seed=1)[0, i] for i in range(6)]


def built(update_every, steps=0):
    """A model and its optimizer; unbounded buckets: tables updated by rows hold what tables built anew hold."""
    sampler = lsh(update_every)
    return trained(sampler, steps)


@functools.cache
def lsh(update_every):
    return cx.samplers.lsh(
        hash=cx.samplers.simhash(),
        num_tables=6,
        num_hashes=5,
        capacity=problems.NUM_CLASSES,
        update_every=update_every,
    )


def trained(sampler, steps=0):
    encoder = cx.models.SparseMLP(problems.NUM_FEATURES, problems.DIM, rngs=nnx.Rngs(0))
    head = cx.Head(problems.NUM_CLASSES, problems.DIM, sampler=sampler, loss=cx.losses.css, rngs=nnx.Rngs(1))
    model = cx.models.Classifier(encoder, head)
    optimizer = cx.Optimizer(model, optax.sgd(2.0))
    cx.training.fit(model, optimizer, SOURCE, num_steps=steps, progress=False)
    return model, optimizer


def measured(update_every=None, *, nodes=None, batches=SOURCE, on=MEASURED, **changed):
    model, optimizer = built(update_every) if nodes is None else nodes
    settings = {"num_steps": 40, "every": 20, "top_k": 5, "key": jax.random.key(0), **changed}
    return measure_staleness(model, optimizer, batches, on, **settings)


@pytest.fixture(scope="module")
def stale():
    return measured(num_steps=50)


def test_tables_that_follow_every_step_lose_nothing():
    result = measured(update_every=1)
    assert result.steps.tolist() == [0, 20, 40]
    np.testing.assert_array_equal(result.recall.value, result.fresh_recall.value)
    np.testing.assert_array_equal(result.lost.value, 0)
    # Neither everything nor nothing is found: the two could differ.
    assert (result.recall.value > 0.1).all()
    assert (result.recall.value < 0.95).all()


def test_tables_that_wait_for_a_refresh_lose_recall(stale):
    assert stale.steps.tolist() == [0, 20, 40, 50]
    assert stale.num_examples == 6 * 16
    assert stale.lost.value[0] == 0
    for lost, error in zip(stale.lost.value[1:], stale.lost.standard_error[1:], strict=True):
        assert lost > 0.1
        assert lost > 4 * error > 0
    np.testing.assert_allclose(stale.lost.value, stale.fresh_recall.value - stale.recall.value, atol=1e-12)


def test_recall_is_what_counting_says():
    """Step 0, by hand: which of each example's five best classes, its labels aside, are in a bucket with it."""
    sampler = lsh(None)
    model, _ = built(None)
    result = measured(num_steps=1, every=1)
    key_refresh, key_draw = jax.random.split(jax.random.key(0))
    classes = model.head.classes()
    refreshed = jax.jit(sampler.refresh)(model.head.state.get_value(), key_refresh, classes)
    sample, means = jax.jit(sampler.sample), []
    for i, batch in enumerate(MEASURED):
        embeddings = cx.training.embed(model, batch)
        query = cx.Query(embeddings, jnp.asarray(batch.labels), classes)
        candidates = sample(refreshed, jax.random.fold_in(key_draw, i), query)
        best = np.argsort(-(embeddings @ classes.vectors.T + classes.biases), axis=1)[:, :5]
        shares = []
        for ids, mask, top, labels in zip(candidates.ids, candidates.mask, best, batch.labels, strict=True):
            wanted = set(top.tolist()) - set(labels.tolist())
            shares.append(len(wanted & set(ids[mask].tolist())) / len(wanted))
        means.append(np.mean(shares))
    assert result.recall.value[0] == pytest.approx(np.mean(means), abs=1e-6)
    assert result.recall.standard_error[0] == pytest.approx(np.std(means, ddof=1) / np.sqrt(6), abs=1e-6)


def test_every_class_as_a_candidate_is_a_recall_of_1():
    sampler = cx.samplers.uniform(problems.NUM_CLASSES, replacement=False)
    result = measured(nodes=trained(sampler), num_steps=4, every=2, top_k=60)
    np.testing.assert_array_equal(result.recall.value, 1)
    np.testing.assert_array_equal(result.fresh_recall.value, 1)


class Recorded:
    """The source, and what was asked of it."""

    batches_per_epoch, identity = SOURCE.batches_per_epoch, SOURCE.identity

    def __init__(self):
        self.positions = []

    def __getitem__(self, position):
        self.positions.append(position)
        return SOURCE[position]


def test_it_starts_with_a_refresh_goes_on_with_the_right_batch_and_leaves_the_state_alone():
    model, optimizer = built(None, steps=18)
    before = jax.tree.map(np.array, nnx.state((model, optimizer)))
    recorded = Recorded()
    result = measured(nodes=(model, optimizer), batches=recorded, num_steps=4, every=4)
    assert result.lost.value[0] == 0  # 18 steps without an update are forgotten
    assert recorded.positions == [(1, 8), (1, 9), (2, 0), (2, 1)]
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.array, nnx.state((model, optimizer))))
    again = measured(nodes=(model, optimizer), num_steps=4, every=4)
    np.testing.assert_array_equal(result.recall.value, again.recall.value)


def test_batches_whose_best_classes_are_all_labels_do_not_count():
    labels = np.tile(np.arange(problems.NUM_CLASSES, dtype=np.int32), (16, 1))
    result = measured(on=[batch._replace(labels=labels) for batch in MEASURED], num_steps=1, every=1)
    assert np.isnan(result.recall.value).all()


class Broken(Recorded):
    """Inputs that are no numbers."""

    def __getitem__(self, position):
        batch = SOURCE[position]
        return batch._replace(feature_values=batch.feature_values * np.float32("nan"))


def test_bad_numbers_and_divergence_are_refused():
    with pytest.raises(ValueError, match="num_steps and every of 1 or more, got 0 and 20"):
        measured(num_steps=0)
    with pytest.raises(ValueError, match="top_k from 1 to 60"):
        measured(top_k=61)
    with pytest.raises(ValueError, match="a head with a sampler"):
        measured(nodes=(cx.Head(60, 8, rngs=nnx.Rngs(0)), built(None)[1]))
    with pytest.raises(ValueError, match=r"2 batches or more to measure .* got 1"):
        measured(on=MEASURED[:1])
    with pytest.raises(ValueError, match="expected labels of batch 1 of those to measure in 0"):
        measured(on=[MEASURED[0], MEASURED[1]._replace(labels=MEASURED[1].labels + 60)])
    with pytest.raises(FloatingPointError, match="at step 1"):
        measured(batches=Broken(), num_steps=2, every=2)
