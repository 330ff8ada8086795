"""Resampling: what is kept, what counts say of it, and retrievers in every place where they fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax import losses, samplers

NUM_VALID = 40


def problem(batch=6, spread=1.0):
    rng = np.random.default_rng(0)
    vectors = spread * rng.normal(size=(43, 5))
    vectors[NUM_VALID:] = np.nan
    biases = jnp.asarray(rng.normal(size=43), jnp.float32)
    classes = cx.Classes(jnp.asarray(vectors, jnp.float32), biases, None, jnp.int32(NUM_VALID))
    labels = jnp.asarray(rng.integers(0, NUM_VALID, (batch, 1)), jnp.int32)
    return cx.Query(jnp.asarray(rng.normal(size=(batch, 5)), jnp.float32), labels, classes)


def test_of_all_classes_the_softmax_is_drawn():
    """With the whole layer as the pool W is the normaliser, counts are K p(c), and slots are drawn like that."""
    query, kept = problem(), 4096
    sampler = samplers.resampled(samplers.top_k(NUM_VALID), kept)
    drawn = jax.jit(sampler.sample)((), jax.random.key(0), query)
    everything = jnp.broadcast_to(jnp.arange(NUM_VALID, dtype=jnp.int32), (6, NUM_VALID))
    counts = np.exp(sampler.log_expected_count((), drawn, everything, query))
    logits = query.embeddings @ query.classes.vectors[:NUM_VALID].T + query.classes.biases[:NUM_VALID]
    np.testing.assert_allclose(counts[0], kept * jax.nn.softmax(logits, axis=1)[0], rtol=1e-3, atol=1e-3)
    # A stratified draw: only the two strata at the ends of a class are left to chance.
    got = np.stack([np.bincount(ids, minlength=NUM_VALID) for ids in np.asarray(drawn.ids)])
    assert np.abs(got - counts).max() < 2.1
    assert np.asarray(drawn.mask).all()


def test_few_of_many_estimate_the_loss_better_than_few():
    query = problem(batch=64, spread=2.0)
    full = losses.full_softmax(query.embeddings, query.labels, query.classes)

    def error(sampler):
        state = sampler.init(jax.random.key(0), query.classes)

        def of(key):
            return cx.sampled_loss(
                query.embeddings, query.labels, query.classes,
                sampler=sampler, state=state, key=key, loss=losses.css, reduction="none",
            )  # fmt: skip

        values = jax.jit(lambda keys: jax.lax.map(of, keys))(jax.random.split(jax.random.key(1), 100))
        return float(jnp.mean((values - full) ** 2))

    few = error(samplers.uniform(6, num_groups=None))
    assert error(samplers.resampled(samplers.uniform(36, num_groups=1, replacement=False), 6)) < few / 4


def test_a_pool_without_candidates_keeps_none():
    query = problem()
    pool = samplers.uniform(4, num_groups=2)
    empty = pool._replace(sample=lambda *args: cx.base.Candidates(
        jnp.zeros((2, 4), jnp.int32), jnp.zeros((2, 4)), jnp.zeros((2, 4), bool), ()))  # fmt: skip
    state = pool.init(jax.random.key(0), query.classes)
    drawn = jax.jit(samplers.resampled(empty, 3).sample)(state, jax.random.key(1), query)
    assert not np.asarray(drawn.mask).any()
    assert np.isfinite(drawn.log_expected_count).all()


@pytest.mark.parametrize("wrong", [{"num_kept": 0}, {"num_kept": 3, "scale": 0.0}])
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=list(wrong)[-1]):
        samplers.resampled(samplers.uniform(6), **wrong)


def of_ones_own():
    own = samplers.exact_index()._replace(kind="own", share=lambda number: own)
    return own


RETRIEVERS = {
    "own": of_ones_own,
    "exact": samplers.exact_index,
    "ivf int8": lambda: samplers.ivf_index(num_centers=4, hm_num=32, num_kept=16, codes="int8"),
    "lsh": lambda: samplers.lsh_index(num_tables=4, num_hashes=2, hash=samplers.simhash()),
    "forest": lambda: samplers.forest_index(num_trees=4, leaf_size=8),
    "label": lambda: samplers.label_index(4),
}


@pytest.mark.parametrize("name", RETRIEVERS)
def test_a_retriever_goes_everywhere(name):
    """Alone, in shards, grouped, resampled, and as the head of a tail."""
    own = RETRIEVERS[name]()
    query, alone = problem(), samplers.retrieved(own, 4)
    parts = (
        (alone, (6, 4)),
        (alone.share(2), (6, 2)),
        (samplers.grouped(own, num_sampled=12, num_groups=2), (2, 12)),
        (samplers.resampled(alone, 3), (6, 3)),
        (samplers.with_tail(alone, samplers.uniform(5)), (6, 9)),
    )

    def shapes(key, query):
        drawn = [part.sample(part.init(key, query.classes), key, query) for part, _ in parts]
        return [found.ids for found in drawn]

    assert [ids.shape for ids in jax.eval_shape(shapes, jax.random.key(0), query)] == [shape for _, shape in parts]


def test_k_is_of_retrievers():
    alone = samplers.retrieved(samplers.exact_index(), 4)
    with pytest.raises(ValueError, match="expected k with a retriever only, got k=3"):
        samplers.grouped(alone, num_sampled=12, k=3)
