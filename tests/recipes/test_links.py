"""Filtered ranks, streamed over blocks, are those of a loop over all entities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import candax as cx
from candax.ranks import streaming_ranks

NUM, DIM, BATCH = 300, 6, 7


def brute_force(logits, labels, known):
    """Ranks by sorting what is left of each row of logits."""
    ranks = []
    for row, (scores, label) in enumerate(zip(logits, labels, strict=True)):
        rivals = np.array([s for c, s in enumerate(scores) if c != label and (row, c) not in known])
        ranks.append(1 + np.sum(rivals > scores[label]) + np.sum(rivals == scores[label]) / 2)
    return ranks


@pytest.mark.parametrize(("block_size", "normalized"), [(8192, False), (128, False), (77, True)])
def test_ranks_equal_brute_force(block_size, normalized):
    rng = np.random.default_rng(0)
    # Whole numbers, so that logits are exact and many are equal; for cosines, signs.
    draw = (lambda shape: rng.choice([-1.0, 1.0], shape)) if normalized else (lambda shape: rng.integers(-2, 3, shape))
    embeddings, vectors = draw((BATCH, 4 if normalized else DIM)), draw((NUM + 5, 4 if normalized else DIM))
    biases = None if normalized else rng.integers(-2, 3, NUM + 5)
    logits = embeddings @ vectors[:NUM].T + (0 if biases is None else biases[:NUM])
    vectors = np.where(np.arange(NUM + 5)[:, None] < NUM, vectors, np.nan)
    labels = np.array([0, 299, 5, 127, 128, 200, 298])
    known = {(int(row), int(c)) for row, c in zip(rng.integers(0, BATCH, 500), rng.integers(0, NUM, 500), strict=True)}
    known |= {(1, 299), (0, 0)}  # labels themselves
    rows, ids = np.array(sorted(known)).T
    rows, ids = np.append(rows, [BATCH, BATCH]), np.append(ids, [0, 3])  # fillers
    classes = cx.Classes(
        jnp.asarray(vectors, jnp.float32),
        None if biases is None else jnp.asarray(biases, jnp.float32),
        None,
        jnp.int32(NUM),
        normalized,
    )
    arrays = (jnp.asarray(x) for x in (embeddings.astype(np.float32), labels, rows, ids))
    first, *rest = arrays
    ranks = jax.jit(streaming_ranks, static_argnames="block_size")(first, classes, *rest, block_size=block_size)
    np.testing.assert_array_equal(ranks, brute_force(logits, labels, known))


def test_a_broken_model_does_not_come_out_best():
    nothing = jnp.zeros(0, jnp.int32)
    classes = cx.Classes(jnp.ones((8, 2)), None, None, jnp.int32(8))
    embeddings = jnp.array([[jnp.nan, 0.0], [0.0, 0.0]])
    ranks = streaming_ranks(embeddings, classes, jnp.array([3, 3]), nothing, nothing)
    assert ranks.tolist() == [8, 4.5]


def random_graph(seed=0, entities=40, number=150):
    rng = np.random.default_rng(seed)
    triples = {(f"e{h}", f"r{r}", f"e{t}") for h, r, t in rng.integers(0, [entities, 3, entities], (number, 3))}
    return cx.data.graph_of("random", [cx.data.Triple(*t) for t in sorted(triples)], valid_share=0.15, test_share=0.2)


@pytest.mark.parametrize("product", ["complex", "elementwise", "sum"])
def test_link_metrics_equal_brute_force(product):
    graph = random_graph()
    rng = np.random.default_rng(1)
    num, kinds, dim = graph.num_entities, graph.num_relations, 4
    vectors, of_relations, biases = (rng.normal(size=s) for s in ((num, dim), (2 * kinds, dim), (num,)))
    known = {tuple(row) for row in np.concatenate([graph.train, graph.valid, graph.test]).tolist()}

    def score(entity, kind):
        """One number for every candidate, by the papers' formulas."""
        x, r = vectors[entity], of_relations[kind]
        if product == "complex":
            x, r, w = (a[..., :2] + 1j * a[..., 2:] for a in (x, r, vectors))
            return np.real(np.sum(x * r * np.conj(w), axis=1)) + biases
        return np.sum(x * r * vectors if product == "elementwise" else (x + r) * vectors, axis=1) + biases

    reciprocal = {"tails": [], "heads": []}
    for head, relation, tail in graph.test.tolist():
        tails, heads = score(head, relation), score(tail, relation + kinds)
        for which, scores, label, others in (
            ("tails", tails, tail, {t for h, r, t in known if (h, r) == (head, relation)}),
            ("heads", heads, head, {h for h, r, t in known if (t, r) == (tail, relation)}),
        ):
            better = sum(scores[c] > scores[label] for c in range(num) if c not in others)
            reciprocal[which].append(1 / (1 + better))

    head_layer = cx.Head(num, dim, rngs=nnx.Rngs(0))
    encoder = cx.models.LinkEncoder(head_layer, 2 * kinds, product=product, rngs=nnx.Rngs(1))
    head_layer.vectors[...] = jnp.asarray(vectors, jnp.float32)
    head_layer.biases[...] = jnp.asarray(biases, jnp.float32)
    encoder.relations[...] = jnp.asarray(of_relations, jnp.float32)
    model = cx.models.Classifier(encoder, head_layer)
    metrics = cx.recipes.links.evaluate_links(
        model,
        head_layer.classes(),
        cx.data.questions_in_order(cx.data.questions_of(graph.test, kinds), 16),
        cx.data.KnownAnswers(graph),
        kinds,
    )
    every = np.array(reciprocal["tails"] + reciprocal["heads"])
    assert metrics["num_questions"] == len(every) > 40
    assert metrics["mrr_tails"] == pytest.approx(np.mean(reciprocal["tails"]), rel=1e-6)
    assert metrics["mrr_heads"] == pytest.approx(np.mean(reciprocal["heads"]), rel=1e-6)
    assert metrics["mrr"] == pytest.approx(np.mean(every), rel=1e-6)
    for k in (1, 3, 10):
        assert metrics[f"hits_at_{k}"] == pytest.approx(np.mean(1 / every <= k))
    with pytest.raises(ValueError, match="at least one question"):
        cx.recipes.links.evaluate_links(model, head_layer.classes(), [], cx.data.KnownAnswers(graph), kinds)
