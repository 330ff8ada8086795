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


def make(candidate="tanh", seed=0):
    head = cx.models.Head(
        CORPUS.num_classes,
        6,
        num_rows=CORPUS.num_classes + 1,
        use_biases=False,
        counts=CORPUS.counts,
        rngs=nnx.Rngs(seed),
    )
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
    model = make()
    program = cx.training.build(
        model,
        sampler=cx.samplers.top_k(CORPUS.num_classes) if sampled else None,
        loss=cx.losses.css if sampled else cx.losses.full_softmax,
        optimizer=optax.sgd(0.5),
        reduce=lambda values: jnp.sum(values) / len(BATCH.words),
    )
    graph, table, params, rest = nnx.split(model, cx.models.Table, nnx.Param, ...)
    before = jnp.array(model.head.vectors[...])

    def objective(vectors):
        whole = nnx.merge(graph, jax.tree.map(lambda _: vectors, table), params, rest)
        logits = whole(BATCH) @ vectors[: CORPUS.num_classes].T
        nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(BATCH.labels, 0), axis=1)
        return jnp.sum(jnp.where(BATCH.labels >= 0, nll, 0)) / len(BATCH.words)

    value, gradient = jax.value_and_grad(objective)(before)
    state, loss = program.step(program.init(0), BATCH)
    np.testing.assert_allclose(loss, value, rtol=1e-5)
    np.testing.assert_allclose(state.tables["class_vectors"], before - 0.5 * gradient, rtol=1e-4, atol=1e-6)
    assert np.any(np.asarray(gradient)[CORPUS.start] != 0)  # the start learns as something that is read


def test_it_learns_a_language():
    corpus = corpus_of("abc", [list("abcd"), list("bcda"), list("cdab")] * 20, min_count=1)
    head = cx.models.Head(corpus.num_classes, 16, num_rows=corpus.num_classes + 1, rngs=nnx.Rngs(0))
    model = cx.models.Classifier(cx.models.GRULanguageModel(head, 16, init_scale=0.3, rngs=nnx.Rngs(1)), head)
    loss = functools.partial(cx.losses.css, complement="redraw", num_kept=3)
    program = cx.training.build(model, sampler=cx.samplers.uniform(6), loss=loss, optimizer=optax.adam(0.02))
    batches = cx.data.SentenceBatches(corpus, 20, 0)
    state, _ = cx.training.fit_program(program, program.init(0), batches, num_steps=150, progress=False)
    batch = sentence_batch(corpus, np.arange(3))
    nll = cx.losses.full_softmax(program.embed(state, batch), jnp.asarray(batch.labels), program.classes(state))
    # Only the first of five words of a sentence is uncertain, among three.
    assert float(jnp.sum(nll)) / 15 == pytest.approx(np.log(3) / 5, abs=0.05)


def test_bad_settings_are_refused():
    head = cx.models.Head(4, 3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="hidden_dim >= 1"):
        cx.models.GRULanguageModel(head, 0, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="init_scale > 0"):
        cx.models.GRULanguageModel(head, 2, init_scale=0.0, rngs=nnx.Rngs(0))
