"""Link prediction: ranks as by hand, what needs no training, and a training that beats it."""

import json
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from flax import nnx

import candax as cx
from candax import data
from candax.models.links import NearEntities
from candax.recipes.common import finished
from candax.recipes.common.catalog import SAMPLERS
from candax.recipes.common.optimizers import row_adagrad
from candax.recipes.links import baselines, building, metrics
from candax.recipes.links.command import METHODS, LinksSettings, problem_of
from candax.recipes.links.metrics import streaming_ranks
from tests.commands import fails, run, write_ring

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
        assert metrics[f"hits@{k}"] == pytest.approx(np.mean(1 / every <= k))
    with pytest.raises(ValueError, match="at least one question"):
        cx.recipes.links.evaluate_links(model, head_layer.classes(), [], cx.data.KnownAnswers(graph), kinds)


@pytest.mark.parametrize("product", ["sum", "rotation"])
def test_inner_products_of_near_entities_are_squared_distances(product):
    near = NearEntities(9, 4, scale=1.0, rngs=nnx.Rngs(0))
    head = cx.Head(9, vectors=near, biases=False, rngs=nnx.Rngs(1))
    encoder = cx.models.LinkEncoder(head, 2, product=product, rngs=nnx.Rngs(2))
    batch = cx.data.QuestionBatch(np.array([3, 5]), np.array([0, 1]), np.array([[1], [2]]))
    rows, of_relations = np.asarray(near.entities[...]), np.asarray(encoder.relations[...])
    if product == "sum":
        question = rows[[3, 5]] + of_relations[[0, 1]]
    else:
        numbers = (rows[:, :2] + 1j * rows[:, 2:])[[3, 5]] * np.exp(1j * of_relations[[0, 1]])
        question = np.concatenate([numbers.real, numbers.imag], axis=1)
    distances = np.sum((question[:, None] - rows[None]) ** 2, axis=2)
    logits = np.asarray(head(encoder(batch)))
    np.testing.assert_allclose(np.sum(question**2, axis=1)[:, None] - logits, distances, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("regulariser", "power"), [("n3", 3), ("l2", 2)])
def test_regularisers_are_of_the_triples_rows_alone(regulariser, power):
    graph = random_graph()
    sampler = cx.samplers.uniform(8)
    settings = LinksSettings(dim=4, scale=1.0, dropout=0.0)
    model = building.link_model_of(settings, METHODS["complex"], graph, sampler, cx.losses.css)
    batch = cx.data.QuestionBatches(graph, 4, 0)[0, 0]
    tables = (np.asarray(table[...]) for table in (model.head.vectors, model.encoder.relations))
    entities, relations = (table[:, :2] + 1j * table[:, 2:] for table in tables)
    rows = [entities[batch.entities], entities[batch.labels[:, 0]], relations[batch.relations]]
    penalty = sum(np.sum(np.abs(row) ** power) for row in rows) / 4
    model.eval()  # the same candidates at each call
    plain, both = (building.regularised(regulariser, weight)(model, batch) for weight in (0.0, 0.5))
    assert both - plain == pytest.approx(0.5 * penalty, rel=1e-4)
    model.train()
    _, grads = cx.value_and_grad(building.regularised(regulariser, 1e3))(model, batch)
    drawn = np.asarray(grads.rows["encoder.entities"].ids)
    assert set(batch.labels[:, 0]) <= set(drawn.tolist())
    assert len(drawn) == 3 * 4 + 8  # nothing as large as the table


def test_adagrad_moves_rows_whose_gradients_are_tiny():
    tx = row_adagrad(0.5, 10)
    weight = jnp.zeros(3)
    updates, _ = tx.update(jnp.array([1e-9, -1e-7, 0.0]), tx.init(weight), weight)
    np.testing.assert_allclose(updates, [-0.5, 0.5, 0.0], rtol=0.01)


def test_what_needs_no_training_by_hand():
    triples = [("a", "r", "b"), ("b", "r", "a"), ("c", "r", "d"), ("a", "s", "b"), ("c", "s", "d"), ("e", "s", "d")]
    graph = cx.data.graph_of("tiny", [cx.data.Triple(*t) for t in triples], valid_share=0.0, test_share=0.0)
    ids = {name: number for number, name in enumerate(graph.entity_names)}
    r, s = (graph.relation_names.index(name) for name in "rs")
    asked = np.array([[ids["e"], r, ids["d"]], [ids["d"], r, ids["c"]], [ids["d"], s + 2, ids["c"]]], np.int32)
    (batch,) = cx.data.questions_in_order(asked, 4)
    frequent = baselines.MostFrequentAnswer(graph)(batch)
    assert [frequent[0, ids[name]] for name in "abcde"] == [1, 1, 0, 1, 0]
    assert [frequent[2, ids[name]] for name in "abcde"] == [1, 0, 1, 0, 1]
    scores = baselines.OtherRelations(graph)(batch)
    # (x, s, y) is (x, r, y) in two of three; of three (x, r, y), two are (y, r, x).
    assert scores[0, ids["d"]] == pytest.approx(2 / 3, abs=0.02)
    assert scores[1, ids["c"]] == pytest.approx(2 / 3, abs=0.02)
    assert scores[0].argmax() == ids["d"]

    # Of the three that are as frequent one is the answer: it comes second on average.
    assert metrics.scored_ranks(baselines.MostFrequentAnswer(graph), [batch], cx.data.KnownAnswers(graph))[0] == 2


@pytest.fixture
def ring(tmp_path):
    return write_ring(tmp_path / "ring")


SMALL = ("--num-sampled", 16, "--batch-size", 32, "--dim", 16, "--epochs", 60, "--regularisation", 0.01)


def test_a_training_beats_what_needs_none_and_writes_its_results(ring, tmp_path, capsys):
    out = tmp_path / "out"
    command = ("links", "--dataset", ring, *SMALL, "--out", out)
    run(*command)
    rows = {(row["method"], row["unseen"]): row for row in json.loads((out / "results.json").read_text())}
    assert {(row["task"], row["data"], row["split"]) for row in rows.values()} == {("links", "ring", "test")}
    kept, dropped = rows["complex", "kept"], rows["complex", "dropped"]
    assert kept["seed"] == 0
    assert kept["seconds"] > 0
    assert kept["mrr"] > 2 * rows["most frequent answer", "kept"]["mrr"]
    assert dropped["mrr"] > 0.8
    assert dropped["mrr"] > kept["mrr"]
    assert rows["other relations", "dropped"]["hits@1"] == 1  # "after" says what "next" is
    assert matplotlib.image.imread(out / "links.png").shape[0] > 300
    printed = " ".join(capsys.readouterr().out.split())
    assert "61 entities" in printed
    assert "test.tsv: 1 triples with an entity or relation that train.tsv has not, kept" in printed
    (out / "results.json").unlink()
    run(*command)  # nothing is trained again
    again = json.loads((out / "results.json").read_text())
    assert {row["mrr"] for row in again} == {row["mrr"] for row in rows.values()}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method, ring, tmp_path):
    small = ("--epochs", 1, *(SMALL[:6]), "--split", "validation", "--unknown", "drop")
    run("links", "--dataset", ring, "--methods", method, *small, "--out", tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["unseen"] for row in rows] == ["dropped"] * 3
    assert rows[-1]["method"] == method
    assert np.isfinite(rows[-1]["mrr"])


@pytest.mark.parametrize(
    ("method", "sampler", "loss"),
    [
        ("complex", "top_k", "nce"),
        ("transe", "resampled", "css"),
        pytest.param("complex", "midx", "one_vs_all", marks=pytest.mark.slow),
        pytest.param("rotate", "lsh_embedding", "sampled_softmax", marks=pytest.mark.slow),
    ],
)
def test_any_sampler_and_loss_go(method, sampler, loss, ring, tmp_path):
    names = ("--methods", method, "--sampler", sampler, "--loss", loss, "--smoothing", 0.1, "--epochs", 1)
    run("links", "--dataset", ring, *SMALL[:6], *names, "--out", tmp_path / "out")


@pytest.mark.parametrize("sampler", ["top_k", "uniform", "midx"])
def test_a_sampler_of_computed_vectors_sees_new_ones_now_and_then(sampler, ring):
    """TransE and RotatE compute the entities' vectors; a sampler that looks at them must not see those of the start."""
    settings = LinksSettings(dataset=str(ring), dim=8, num_sampled=4, sampler=sampler).ready()
    graph = problem_of(settings).graph
    of_sampler = {name: building.training_of(settings, METHODS[name], graph, 0)[1][0] for name in ("complex", "transe")}
    own = SAMPLERS[sampler](4).schedule
    due = [any(map(of.schedule, range(1, 101))) for of in of_sampler.values()]
    assert due == [any(map(own, range(1, 101))), sampler != "uniform"]


def test_wrong_data_and_settings_end_in_one_line(ring, tmp_path, capsys):
    here = ("--out", tmp_path / "out")
    test, train = ring / "test.tsv", ring / "train.tsv"
    test.write_text("e1\tnext\tnobody\n")
    unknown = fails(capsys, "links", "--dataset", ring, "--unknown", "error", *here)
    assert "test.tsv:1: 'nobody' is not in train.tsv" in unknown
    whole = train.read_text()
    for text, message in (
        (b"e1\tnext\n", "train.tsv:1: expected 3 columns separated by tabs"),
        (b"e1\tnext\t\n", "train.tsv:1: expected no empty column"),
        (whole.encode() + b"e1\tn\xe4chst\te2", f"train.tsv:{whole.count(chr(10)) + 1}: expected text in UTF"),
        (b"", "expected lines of head, relation, tail"),
    ):
        train.write_bytes(text)
        assert message in fails(capsys, "links", "--dataset", ring, *here)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"a{i}\tr\tb{i}\n" for i in range(50)))
    assert "found none beside 50 for training. A single file is split" in fails(
        capsys, "links", "--dataset", pairs, *here
    )
    assert "--dim of 1 or more, got 0" in fails(capsys, "links", "--dim", 0, *here)
    assert "expected an even number" in fails(capsys, "links", "--batch-size", 7, *here)
    assert "a dropout below 1" in fails(capsys, "links", "--dropout", 1, *here)
    assert LinksSettings().ready().unknown == "keep"
    for method in ("complex", "rotate", "full_softmax"):
        odd = fails(capsys, "links", "--dim", 7, "--methods", "transe", method, *here)
        assert f"expected an even number for {method}, a complex number takes two, got --dim 7" in odd
        with pytest.raises(ValueError, match=f"an even dim for {method}, a complex number takes two, got 7"):
            cx.recipes.LinkPredictor(method, dim=7)
    assert METHODS["transe"].takes(7)
    assert METHODS["distmult"].takes(7)
    train.write_text(whole)
    dropped = fails(capsys, "links", "--dataset", ring, "--unknown", "drop", *here)
    assert "There is no test.tsv, or --unknown drop left nothing of it" in dropped
    (ring / "valid.tsv").unlink()
    assert "There is no valid.tsv" in fails(capsys, "links", "--dataset", ring, "--split", "validation", *here)


def test_what_reading_passes_over_is_counted(tmp_path):
    (tmp_path / "train.tsv").write_text("Subject\tpredicate\tobject\na\tr\tb\n\na\tr\tb\nb\tr\tc\n")
    (tmp_path / "test.tsv").write_text("a\tr\tb\nx\tr\ta\n")
    graph = cx.data.graph(tmp_path, unknown="keep")
    assert graph.num_relations == 1
    assert graph.notes == (
        "train.tsv:1: taken for names of columns: Subject, predicate, object",
        "train.tsv: 1 triples that stand there before, counted once",
        "train.tsv: 1 empty lines passed over",
        "test.tsv: 1 triples with an entity or relation that train.tsv has not, kept and ranked by untrained rows",
        "test.tsv: 1 triples of train.tsv too",
    )
    assert graph.counts[graph.entity_names.index("x")] == 0
    (tmp_path / "test.tsv").write_text("tail\thead\trel\nc\tb\tr\n")
    (asked,) = cx.data.graph(tmp_path).test
    assert [graph.entity_names[end] for end in asked[[0, 2]]] == ["b", "c"]
    (tmp_path / "test.tsv").write_text("a\tr\tb\nx\tr\ta\n")
    assert len(cx.data.graph(tmp_path, unknown="drop").test) == 1


def test_settings_that_are_given_stay_as_they_are():
    given = LinksSettings(learning_rate=0.2)
    assert METHODS["transe"].of(given).learning_rate == 0.2
    assert METHODS["transe"].of(given).regularisation == 0.03
    assert METHODS["transe"].of(LinksSettings(learning_rate=0.3)).learning_rate == 0.3
    assert METHODS["complex"].of(LinksSettings().ready()).regularisation == 0.01  # python-stdlib's
    assert METHODS["distmult"].of(LinksSettings().ready()).regularisation == 0.05
    assert METHODS["full_softmax"].of(LinksSettings(loss="nce")).loss is None
    on_a_file = LinksSettings(dataset="shop.tsv")
    assert METHODS["complex"].of(on_a_file) == on_a_file


def test_scores_of_arrays_and_of_nothing():
    triples = [("Paris", "capital of", "France"), ("Rome", "capital of", "Italy")]
    model = cx.recipes.LinkPredictor(dim=4, epochs=1, batch_size=2).fit(triples)
    cities, countries = np.array(["Paris", "Rome"]), np.array(["France", "Italy"])
    expected = model.score(list(cities), "capital of", list(countries))
    np.testing.assert_array_equal(model.score(cities, "capital of", countries), expected)
    for nothing in ([], cities[:0]):
        assert model.score(nothing, "capital of", nothing).shape == (0,)
        assert model.score(nothing, "capital of", "Italy").shape == (0,)
    with pytest.raises(ValueError, match="lists of one length, got 2, 1 and 0"):
        model.score(["Paris", "Rome"], "capital of", [])
    model.complete("Rome", "capital of", 1)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.score(cities, "capital of", countries), expected)


def test_the_full_softmax_of_a_command_with_a_sampler_is_loaded():
    graph = data.graph_of("g", [data.Triple("a", "r", "b"), data.Triple("b", "r", "c")], valid_share=0, test_share=0)
    model = cx.recipes.LinkPredictor("full_softmax", dim=4)
    bare = building.link_model_of(model.settings, METHODS["full_softmax"], graph)
    options = {**model.settings.options, "sampler": "unigram"}
    extra, names = {"triples": graph.train}, {"entities": graph.entity_names, "relations": graph.relation_names}
    about = {"method": "full_softmax", "options": options, "data": "g"}
    saved = finished.Finished(Path("model"), "links", about, finished.weights_of(bare), names, extra)
    assert cx.recipes.LinkPredictor.of(saved).complete("a", "r", 1)[0][0] in graph.entity_names


@pytest.mark.parametrize("triple", [5, "abc", ("a", 1, "b"), ("a", "b")])
def test_what_is_no_triple_is_said(triple):
    with pytest.raises(ValueError, match=r"expected triples .head, relation, tail. of texts, got .* as number 1"):
        cx.recipes.LinkPredictor(dim=8).fit([("a", "r", "b"), triple])
