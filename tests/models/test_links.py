"""A tied encoder before a head: one table, trained from both uses, by the gradient of the whole."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from tests.training import problems

NUM, DIM, KINDS = 30, 4, 6
QUESTIONS = cx.data.QuestionBatch(
    np.array([3, 7, 3, 29], np.int32), np.array([0, 5, 1, 0], np.int32), np.array([[7], [3], [8], [3]], np.int32)
)


def links():
    head = cx.Head(NUM, DIM, rngs=nnx.Rngs(0))
    return cx.models.Classifier(cx.models.LinkEncoder(head, KINDS, rngs=nnx.Rngs(1)), head)


def test_a_step_descends_the_gradient_of_both_uses():
    model, batch = links(), QUESTIONS
    vectors = jnp.array(model.head.vectors[...])
    graph, tables, rest = nnx.split(model, cx.rows.Table, ...)

    def dense(tables):
        whole = nnx.merge(graph, tables, rest)
        return jnp.mean(cx.losses.full_softmax(whole(batch), jnp.asarray(batch.labels), whole.head.classes()))

    gradient = nnx.merge(graph, jax.jit(jax.grad(dense))(tables), rest).head.vectors[...]
    training = problems.Training(model, optax.sgd(0.5))
    training.step(batch)
    np.testing.assert_allclose(model.head.vectors[...], vectors - 0.5 * gradient, atol=1e-6)
    assert not {"encoder.entities", "head.vectors"} <= set(training.tables)  # one table, one name


def test_complex_products_tell_the_ends_of_a_relation_apart():
    model = links()
    classes = model.head.vectors[...]

    def score(h, t):
        asked = SimpleNamespace(entities=jnp.array([h]), relations=jnp.array([0]))
        return float(model(asked)[0] @ classes[t])

    assert score(3, 7) != pytest.approx(score(7, 3), rel=1e-3)


def test_wrong_sizes_are_refused():
    head = cx.Head(NUM, 5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="even number of coordinates"):
        cx.models.LinkEncoder(head, 2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="num_kinds >= 1"):
        cx.models.LinkEncoder(head, 0, product="sum", rngs=nnx.Rngs(0))


@pytest.mark.parametrize("encoder", ["LinkEncoder", "GRULanguageModel", "LSTMLanguageModel", "SequenceEncoder"])
def test_encoders_that_share_a_table_ask_for_one(encoder):
    head = cx.Head(NUM, vectors=lambda ids: jnp.ones((len(ids), 4)), rngs=nnx.Rngs(0))
    sizes = {"LinkEncoder": {"num_kinds": 2}, "GRULanguageModel": {"hidden_dim": 3}}.get(encoder, {})
    sizes = {"num_streams": 1} if encoder == "LSTMLanguageModel" else sizes
    with pytest.raises(ValueError, match=f"{encoder}: expected a head with a table"):
        getattr(cx.models, encoder)(head, **sizes, rngs=nnx.Rngs(0))


def test_a_mixture_with_the_labels_of_the_batch_learns_a_graph():
    """In-batch and sampled candidates, corrected for popularity."""
    ring = [cx.data.Triple(f"e{i}", "next", f"e{(i + 1) % NUM}") for i in range(NUM)]
    graph = cx.data.graph_of("ring", ring, valid_share=0.0, test_share=0.0)
    sampler = cx.samplers.mixture([cx.samplers.in_batch(), cx.samplers.uniform(8)])
    head = cx.Head(NUM, 16, sampler=sampler, counts=graph.counts, rngs=nnx.Rngs(0))
    model = cx.models.Classifier(cx.models.LinkEncoder(head, 2, rngs=nnx.Rngs(1)), head)
    batches = cx.data.QuestionBatches(graph, batch_size=10, seed=0)
    cx.training.fit(model, cx.Optimizer(model, optax.adam(0.05)), batches, num_steps=150, progress=False)
    metrics = cx.recipes.links.evaluate_links(
        partial(cx.training.embed, model),
        model.head.classes(),
        cx.data.questions_in_order(cx.data.questions_of(graph.train, 1), 20),
        cx.data.KnownAnswers(graph),
        1,
    )
    assert metrics["hits@1"] > 0.95
