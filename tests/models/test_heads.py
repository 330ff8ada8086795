"""What a head hands on to its loss, and what it refuses to leave out without a word."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx

L, UNIFORM = cx.losses, cx.samplers.uniform(6)
IN_BLOCKS = partial(L.full_softmax, block_size=8)
H = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
LABELS = jnp.array([[1, 2], [3, -1], [-1, -1]])


def test_a_loss_over_all_classes_is_told_how_many_there_are():
    """Of a longer table the rows behind are no classes: a ranking of five has a margin of log 4."""
    words = cx.Embed(1000, 4, rngs=nnx.Rngs(0))
    shared = cx.Head(5, table=words, loss=L.over_all_classes(L.ranking), rngs=nnx.Rngs(0))
    own = cx.Head(5, 4, loss=L.over_all_classes(L.ranking), rngs=nnx.Rngs(0))
    own.vectors[...] = words.embedding[...][:5]
    assert float(shared.loss(H, LABELS)) == pytest.approx(float(own.loss(H, LABELS)), rel=1e-5)


def signed_root(logits):
    return jnp.sign(logits) * jnp.sqrt(jnp.abs(logits))


@pytest.mark.parametrize("sampler", [UNIFORM, None])
def test_what_is_masked_reaches_no_transform(sampler):
    """A root has no finite gradient at 0, which is what masked logits are."""
    head = cx.Head(20, 4, sampler=sampler, transform=signed_root, biases=False, rngs=nnx.Rngs(0))
    loss, gradient = nnx.value_and_grad(lambda head: head.loss(H, LABELS))(head)
    assert np.isfinite(loss)
    assert np.isfinite(gradient["vectors"][...]).all()
    assert np.any(gradient["vectors"][...] != 0)


def test_blocks_that_nothing_would_be_scored_in_are_refused():
    with pytest.raises(ValueError, match="expected a sampler with block_size=16"):
        cx.Head(20, 4, block_size=16, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="expected a sampler with block_size=2"):
        cx.sampled_loss(H, LABELS, cx.Classes(H), sampler=None, loss=L.full_softmax, block_size=2)
    with pytest.raises(ValueError, match="without block_size with transform="):
        cx.Head(20, 4, loss=IN_BLOCKS, transform=jnp.tanh, rngs=nnx.Rngs(0))


def test_what_is_refused_leaves_a_head_as_it_is():
    head = cx.Head(20, 4, transform=jnp.tanh, rngs=nnx.Rngs(0))
    before = head.sampler, head.loss_function, head._given
    with pytest.raises(ValueError, match="without block_size"):
        head.use(None, IN_BLOCKS)
    assert (head.sampler, head.loss_function, head._given) == before


def test_all_log_probabilities_may_be_asked_for():
    head = cx.Head(20, 4, rngs=nnx.Rngs(0))
    found = head.log_prob(H, jnp.broadcast_to(jnp.arange(20), (3, 20)))
    np.testing.assert_allclose(found, jax.nn.log_softmax(head(H)), rtol=1e-4)


def test_a_batch_may_be_empty():
    head = cx.Head(5000, 4, sampler=UNIFORM, rngs=nnx.Rngs(0))
    nobody = jnp.zeros((0, 4))
    for k in (1, 16):
        assert head.top_k(nobody, k)[1].shape == (0, k)
    assert head.sample(jax.random.key(0), nobody).shape == (0,)
    assert float(head.loss(nobody, jnp.zeros(0, jnp.int32), more_labels=jnp.array([[-1, -1]]))) == 0


def test_no_groups_of_no_examples_are_scored():
    ids = jnp.zeros((0, 3), jnp.int32)
    candidates = cx.Candidates(ids, jnp.zeros((0, 3)), ids > 0)
    labels = jnp.zeros((0, 2), jnp.int32)
    logits = cx.models.scoring.score(
        jnp.zeros((0, 2)),
        jnp.zeros((0, 4)),
        labels,
        candidates,
        jnp.zeros((0, 2)),
        jnp.zeros((0, 3, 4)),
        None,
        num_classes=9,
    )
    assert logits.sampled.shape == logits.hits.shape == (0, 3)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_another_kind_are_kept_as_they_are(impl):
    """Of the kind that is common on TPUs, whose data are four words."""
    head = cx.Head(20, 4, sampler=UNIFORM, rngs=nnx.Rngs(params=jax.random.key(0, impl=impl)))
    first, second = head.step_key(), (head.loss(H, LABELS), head.step_key())[1]
    assert jax.random.key_impl(second) == impl
    assert (jax.random.key_data(first) != jax.random.key_data(second)).any()
    copy = nnx.merge(*nnx.split(head))
    assert (jax.random.key_data(copy.step_key()) == jax.random.key_data(second)).all()


@pytest.mark.parametrize(
    ("sampler", "loss"),
    [
        (cx.samplers.uniform, L.sampled_softmax),
        (cx.samplers.log_uniform, L.css),
        (cx.samplers.unigram, partial(L.css, complement="redraw")),
        (cx.samplers.unigram, L.negative_sampling),
        (cx.samplers.uniform, L.one_vs_all),
        (lambda number: None, L.full_softmax),
    ],
)
def test_a_model_trains_where_types_are_not_promoted(sampler, loss):
    tokens, weights = jnp.arange(6).reshape(2, 3), jnp.ones((2, 3))

    def loss_of(model):
        return model["head"].loss(model["words"](tokens), tokens, weights=weights)

    def step(arrays):
        model, optimizer = nnx.merge(graph, arrays)
        optimizer.update(model, cx.value_and_grad(loss_of)(model)[1])
        return nnx.state((model, optimizer))

    with jax.numpy_dtype_promotion("strict"):
        words = cx.Embed(20, 4, rngs=nnx.Rngs(0))
        head = cx.Head(20, table=words, sampler=sampler(6), loss=loss, counts=np.arange(20), rngs=nnx.Rngs(0))
        model = nnx.Dict(words=words, head=head)
        graph, arrays = nnx.split((model, cx.Optimizer(model, optax.adagrad(0.1), clip_norm=1.0)))
        assert jax.tree.structure(jax.eval_shape(step, arrays)) == jax.tree.structure(arrays)
