"""The GRU language model against its equations, and its tied table trained from both of its uses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.data import corpus_of, sentence_batch

CORPUS = corpus_of("tiny", [["a", "b", "c", "a"], ["c"], ["b", "b", "d"]], min_count=1)
BATCH = sentence_batch(CORPUS, np.array([0, 1, 2]))


def make(candidate="tanh", seed=0, **options):
    # One word more than is predicted: the start.
    words = cx.Embed(CORPUS.num_classes + 1, 6, rngs=nnx.Rngs(seed))
    options |= {"table": words, "biases": False, "counts": CORPUS.counts, "rngs": nnx.Rngs(seed)}
    head = cx.Head(CORPUS.num_classes, **options)
    encoder = cx.models.GRULanguageModel(head, 5, candidate=candidate, init_scale=0.7, rngs=nnx.Rngs(seed + 1))
    return cx.models.Classifier(encoder, head)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("candidate", ["tanh", "sigmoid"])
def test_equations(candidate):
    model = make(candidate)
    cell = model.encoder.cell
    w, b = np.asarray(cell.dense_i.kernel[...], np.float64), np.asarray(cell.dense_i.bias[...], np.float64)
    recurrent = np.asarray(cell.dense_h.kernel[...], np.float64)
    vectors = np.asarray(model.head.vectors[...], np.float64)
    expected = []
    for sentence in BATCH.words:
        h = np.zeros(5)
        for word in sentence:
            x = vectors[word] if word >= 0 else np.zeros(6)
            (xr, xu, xc), (hr, hu, hc) = np.split(x @ w + b, 3), np.split(h @ recurrent, 3)
            r, u = sigmoid(xr + hr), sigmoid(xu + hu)
            c = (np.tanh if candidate == "tanh" else sigmoid)(xc + r * hc)
            h = (1 - u) * c + u * h
            expected.append(h @ np.asarray(model.encoder.projection.kernel[...], np.float64))
    np.testing.assert_allclose(model(BATCH), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_step_is_gradient_descent_on_the_tied_table(sampled):
    """With every class a candidate and plain SGD, one step equals differentiating the whole table of both uses."""
    model = make(sampler=cx.samplers.top_k(CORPUS.num_classes), loss=cx.losses.css) if sampled else make()
    graph, table, params, rest = nnx.split(model, cx.rows.Table, nnx.Param, ...)
    before = jnp.array(model.head.vectors[...])

    def objective(vectors):
        whole = nnx.merge(graph, jax.tree.map(lambda _: vectors, table), params, rest)
        logits = whole(BATCH) @ vectors[: CORPUS.num_classes].T
        nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(BATCH.labels, 0), axis=1)
        return jnp.sum(jnp.where(BATCH.labels >= 0, nll, 0)) / len(BATCH.words)

    value, gradient = jax.value_and_grad(objective)(before)
    optimizer = cx.Optimizer(model, optax.sgd(0.5))

    @nnx.jit
    def step(model, optimizer):
        def sum_per_sentence(model):
            return model.head.loss(model(BATCH), BATCH.labels, reduction="sum") / len(BATCH.words)

        loss, grads = cx.value_and_grad(sum_per_sentence)(model)
        optimizer.update(model, grads)
        return loss

    np.testing.assert_allclose(step(model, optimizer), value, rtol=1e-5)
    np.testing.assert_allclose(model.head.vectors[...], before - 0.5 * gradient, rtol=1e-4, atol=1e-6)
    assert np.any(np.asarray(gradient)[CORPUS.start] != 0)  # the start learns as something that is read


def test_it_learns_a_language():
    corpus = corpus_of("abc", [list("abcd"), list("bcda"), list("cdab")] * 20, min_count=1)
    loss = functools.partial(cx.losses.css, complement="redraw", num_kept=3)
    words = cx.Embed(corpus.num_classes + 1, 16, rngs=nnx.Rngs(0))
    head = cx.Head(corpus.num_classes, table=words, sampler=cx.samplers.uniform(6), loss=loss, rngs=nnx.Rngs(0))
    model = cx.models.Classifier(cx.models.GRULanguageModel(head, 16, init_scale=0.3, rngs=nnx.Rngs(1)), head)
    batches = cx.data.SentenceBatches(corpus, 20, 0)
    cx.training.fit(model, cx.Optimizer(model, optax.adam(0.02)), batches, num_steps=150, progress=False)
    batch = sentence_batch(corpus, np.arange(3))
    nll = cx.losses.full_softmax(cx.training.embed(model, batch), jnp.asarray(batch.labels), model.head.classes())
    # Only the first of five words of a sentence is uncertain, among three.
    assert float(jnp.sum(nll)) / 15 == pytest.approx(np.log(3) / 5, abs=0.05)


def test_bad_settings_are_refused():
    head = cx.Head(4, 3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="expected hidden_dim to be"):
        cx.models.GRULanguageModel(head, 0, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="init_scale > 0"):
        cx.models.GRULanguageModel(head, 2, init_scale=0.0, rngs=nnx.Rngs(0))
