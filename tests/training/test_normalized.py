"""A normalised head: training through the lengths, margins with any sampler, and everything ranks by cosine."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from scipy.sparse import csr_array

import candax as cx
from candax import losses, samplers
from tests.training import problems
from tests.training.test_step import assert_models_close, everything, run

ARCFACE = functools.partial(losses.arcface, margin=0.3, scale=8.0)


def model(sampler=None, loss=None, **head):
    return problems.model(sampler, loss, normalized=True, **head)


def training(sampler, loss, optimizer=None, **head):
    return problems.Training(model(sampler, loss, **head), optax.sgd(0.1) if optimizer is None else optimizer)


def test_a_step_is_the_ordinary_dense_step_through_the_lengths():
    """Against jax.grad of the whole, cosines by division."""
    loss = losses.over_all_classes(losses.with_margin(ARCFACE, losses.subset_softmax))
    trained, batch = training(None, loss), problems.Source()[0, 0]
    value = trained.step(batch)
    graph, variables, rest = nnx.split(model(), nnx.Param, ...)

    def mean_loss(variables):
        merged = nnx.merge(graph, variables, rest)
        embeddings, vectors = merged(batch), merged.head.vectors[...]
        embeddings = embeddings / jnp.linalg.norm(embeddings, axis=1, keepdims=True)
        vectors = vectors / jnp.linalg.norm(vectors, axis=1, keepdims=True)
        classes = cx.Classes(vectors, None, None, jnp.int32(problems.NUM_CLASSES))
        return jnp.mean(loss(embeddings, jnp.asarray(batch.labels), classes))

    expected, grads = jax.value_and_grad(mean_loss)(variables)
    wanted = jax.tree.map(lambda value, grad: value - 0.1 * grad, variables, grads)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    chex.assert_trees_all_close(
        nnx.to_pure_dict(nnx.state(trained.model, nnx.Param)), nnx.to_pure_dict(wanted), atol=1e-6
    )


@pytest.mark.parametrize(
    ("margin", "loss"),
    [
        (ARCFACE, losses.css),
        (functools.partial(losses.cosface, scale=8.0), losses.subset_softmax),
        pytest.param(ARCFACE, losses.subset_softmax, marks=pytest.mark.slow),
        pytest.param(functools.partial(losses.cosface, scale=8.0), losses.css, marks=pytest.mark.slow),
    ],
)
def test_all_classes_as_candidates_train_like_the_full_softmax(margin, loss):
    with_margin = losses.with_margin(margin, loss)
    padded = (cx.Embed(64, problems.DIM, rngs=nnx.Rngs(2)) for _ in range(2))
    sparse = training(everything(), with_margin, table=next(padded))
    dense = training(None, losses.over_all_classes(with_margin), table=next(padded))
    np.testing.assert_allclose(run(sparse, 4), run(dense, 4), rtol=1e-5)
    assert_models_close(sparse, dense)


@pytest.mark.parametrize(
    ("sampler", "loss"),
    [
        (samplers.uniform(12), losses.with_margin(ARCFACE, losses.css)),
        (samplers.unigram(12), losses.with_margin(functools.partial(losses.cosface, scale=8.0), losses.css)),
        (samplers.uniform(12, replacement=False), functools.partial(losses.d_softmax, scale=8.0)),
    ],
)
def test_training_learns(sampler, loss):
    trained = training(sampler, loss, optax.adam(3e-2))
    run(trained, 200, problems.Source(batch_size=64, num_labels=1, batches_per_epoch=200))
    unseen = problems.Source(batch_size=512, num_labels=1)[1, 0]
    _, best = trained.model.head.top_k(cx.training.embed(trained.model, unseen), 1)
    # The label is one of the five features, and the input does not say which: any is a good answer, chance is .08.
    assert np.mean(np.any(best == unseen.feature_ids, axis=1)) > 0.4


def unequal_lengths():
    """Class vectors whose inner products order them otherwise than their cosines."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(40, 5)) * 10.0 ** rng.uniform(-1, 1, size=(40, 1))
    vectors[37:] = np.nan
    classes = cx.Classes(jnp.asarray(vectors, jnp.float32), None, None, jnp.int32(37), normalized=True)
    embeddings = jnp.asarray(3 * rng.normal(size=(6, 5)), jnp.float32)
    along = vectors[:37] / np.linalg.norm(vectors[:37], axis=1, keepdims=True)
    cosines = np.asarray(embeddings / jnp.linalg.norm(embeddings, axis=1, keepdims=True)) @ along.T
    assert np.any(np.argmax(cosines, 1) != np.argmax(np.asarray(embeddings) @ vectors[:37].T, 1))
    return classes, embeddings, cosines


@pytest.mark.parametrize(
    "sampler",
    [
        samplers.top_k(4),
        pytest.param(
            samplers.lsh_top_k(4, hash=samplers.simhash(), num_tables=60, num_hashes=1, capacity=None),
            marks=pytest.mark.slow,
        ),
        samplers.lsh_top_k(4, hash=samplers.simhash(), num_tables=60, num_hashes=1, capacity=None, near="logit"),
    ],
)
def test_retrieval_ranks_by_cosine(sampler):
    classes, embeddings, cosines = unequal_lengths()
    query = cx.Query(embeddings, jnp.zeros((6, 1), jnp.int32), classes)
    found = sampler.sample(sampler.init(jax.random.key(0), classes), jax.random.key(1), query)
    np.testing.assert_array_equal(np.sort(found.ids, 1), np.sort(np.argsort(-cosines, 1)[:, :4], 1))


def test_evaluation_ranks_by_cosine_and_takes_embeddings_of_any_length():
    classes, embeddings, cosines = unequal_lengths()
    labels = csr_array(np.arange(37) == np.argmax(cosines, 1)[:, None])
    got = cx.training.evaluate(
        lambda rows: embeddings[rows], classes, [(slice(0, 6), slice(0, 6))], labels, np.ones(37), 6
    )
    assert got["p_at_1"] == 1.0
    log_likelihood = np.max(cosines, 1) - np.log(np.exp(cosines).sum(1))
    assert got["log_likelihood"] == pytest.approx(np.mean(log_likelihood), rel=1e-5)


def test_samplers_see_embeddings_of_length_one():
    seen = []

    def sample(state, key, query):
        assert query.classes.normalized
        jax.debug.callback(lambda embeddings: seen.append(np.array(embeddings)), query.embeddings)
        return inner.sample(state, key, query)

    inner = samplers.uniform(5)
    trained = training(inner._replace(sample=sample), losses.with_margin(ARCFACE, losses.css))
    jax.block_until_ready(trained.step(problems.Source()[0, 0]))
    jax.effects_barrier()
    np.testing.assert_allclose(np.linalg.norm(seen[0], axis=1), 1, rtol=1e-5)
