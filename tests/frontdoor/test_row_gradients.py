"""Row gradients are those of a dense copy of the same model, which ``nnx.value_and_grad`` makes of it."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from tests.conformance.tables import LOSSES
from tests.frontdoor import models
from tests.frontdoor.models import DIM, NUM, assert_close, assert_dense_gradients, batch, by_name, named

RowGradients = cx.rows.RowGradients


def three_lookups(model, batch):
    """Every token stands in two of them, and many several times in one."""
    around = jnp.roll(batch.tokens, 1, axis=1)
    h = model.words(batch.tokens) * model.words(around) + jnp.tanh(model.words(batch.labels))
    return jnp.mean(jnp.sum(model.layer(h) ** 2, axis=-1), where=batch.where)


def one_lookup(model, batch):
    return jnp.sum(jnp.sin(model.layer(model.words(batch.tokens))))


@pytest.mark.parametrize("loss", [one_lookup, three_lookups])
def test_lookups_with_equal_ids_have_the_dense_gradient(loss):
    grads = assert_dense_gradients(models.lm(), loss, batch())
    assert list(grads.rows) == ["words.embedding"]
    ids = np.asarray(grads.rows["words.embedding"].ids)
    assert np.all(np.diff(ids) > 0)
    assert (ids < NUM).sum() < batch().tokens.size


@pytest.mark.parametrize(
    "options",
    [{"tied": True}, {"tied": True, "batch_norm": True}, {"dropout": True}],
    ids=["tied", "tied, batch norm", "dropout"],
)
def test_a_model_with_a_head_has_the_dense_gradient(options):
    model = models.lm(**options)
    grads = assert_dense_gradients(model, models.masked_loss, batch())
    # A shared table has the first of its names.
    assert set(grads.rows) == {"head.vectors", "head.biases"} | (set() if "tied" in options else {"words.embedding"})
    assert all(isinstance(entry, RowGradients) for entry in grads.rows.values())
    # A second step: other keys, other statistics.
    assert_dense_gradients(model, models.masked_loss, batch(1))


def with_nan(model, batch):
    """NaN stands where nothing counts."""
    h = jnp.where(batch.where[..., None], model(batch.tokens), jnp.nan)
    return model.head.loss(h, batch.labels, where=batch.where)


def test_what_is_masked_has_no_gradient():
    by_rows = models.gradients(models.masked_loss)[0]
    none = batch()._replace(where=jnp.zeros_like(batch().where))
    value, grads = by_rows(models.lm(), none)
    assert value == 0
    assert float(grads.norm()) == 0
    clean = by_rows(models.lm(), batch())[1]
    spoilt = nnx.jit(cx.value_and_grad(with_nan))(models.lm(), batch())[1]
    assert_close(named(spoilt), named(clean))


@cache
def gradients_of_losses(normalized):
    """Of all losses at once: ``shares`` says how much of each stands in the sum."""
    cases = [case.loss for name, case in LOSSES.items() if needs_cosines(name) == normalized]
    key = jax.random.key(3)
    tables = {"words": jax.random.normal(key, (NUM, DIM)), "biases": None if normalized else jnp.linspace(-1, 1, NUM)}
    state = models.UNIFORM.init(key, cx.Classes(tables["words"]))

    def loss(tables, mix, shares, batch):
        labels = jnp.stack([batch.labels, jnp.where(batch.where, batch.tokens, -1)], axis=-1)
        return cx.sampled_loss(
            cx.rows.lookup(tables["words"], batch.tokens) @ mix,
            labels,
            cx.Classes(tables["words"], tables["biases"], normalized=normalized),
            sampler=models.UNIFORM,
            state=state,
            key=key,
            loss=lambda logits: sum(share * of(logits) for share, of in zip(shares, cases, strict=True)),
            weights=1.0 + batch.tokens,
        )

    mix = jax.random.normal(jax.random.key(4), (DIM, DIM))
    of_rows = jax.jit(cx.rows.value_and_grad(loss))
    dense = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    return [partial(of, tables, mix) for of in (of_rows, dense)]


def needs_cosines(name):
    return "arcface" in name or "cosface" in name


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_the_dense_gradient(name):
    """Of a table that is input and output, with several labels, some of them among the candidates."""
    of_rows, dense = gradients_of_losses(needs_cosines(name))
    names = [other for other in LOSSES if needs_cosines(other) == needs_cosines(name)]
    shares = np.array([float(other == name) for other in names], np.float32)
    value, grads = of_rows(shares, batch(size=2))
    expected_value, (of_tables, of_mix) = dense(shares, batch(size=2))
    assert np.isfinite(value)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    assert isinstance(grads.rows["words"], RowGradients)
    assert float(grads.norm()) > 0
    got = {table: models.scattered(entry) for table, entry in grads.rows.items() if entry is not None}
    expected = {table: entry for table, entry in of_tables.items() if entry is not None}
    assert_close(got | {"mix": grads.params}, expected | {"mix": of_mix})


def test_the_loss_over_all_classes_has_the_dense_gradient():
    grads = assert_dense_gradients(models.lm(sampler=None), models.masked_loss, batch())
    assert isinstance(grads.rows["words.embedding"], RowGradients)
    assert grads.rows["head.vectors"].shape == (NUM, DIM)


def test_predictions_scored_in_blocks_have_the_dense_gradient():
    assert_dense_gradients(models.lm(tied=True, block_size=5), models.masked_loss, batch())


@nnx.jit
def update(model, optimizer, grads):
    optimizer.update(model, grads)


@pytest.mark.parametrize("name", models.SAMPLERS)
def test_every_kind_of_sampler_has_the_dense_gradient(name):
    model = models.lm(sampler=models.SAMPLERS[name])
    optimizer = cx.Optimizer(model, optax.sgd(0.5))
    before = jax.tree.map(np.array, jax.tree.leaves(model.head.state.get_value()))
    for i in range(2):  # so that what is learned or follows the class vectors has something to draw from
        update(model, optimizer, models.gradients(models.masked_loss)[0](model, batch(i))[1])
    after = jax.tree.leaves(model.head.state.get_value())
    changed = any(np.any(one != other) for one, other in zip(before, after, strict=True))
    assert changed == (name != "uniform")
    assert_dense_gradients(model, models.masked_loss, batch(2))


def test_micro_batches_in_a_list_have_the_weighted_mean_of_dense_gradients():
    model = models.lm(dropout=True)
    dense, weights = nnx.clone(model), [batch(i).where.sum() for i in range(3)]
    assert len({int(weight) for weight in weights}) == 3
    of_rows, of_all = models.gradients(models.masked_loss)
    parts = [of_rows(model, batch(i))[1] for i in range(3)]
    expected = [of_all(dense, batch(i))[1] for i in range(3)]

    def mean(*leaves):
        return sum(weight * leaf for weight, leaf in zip(weights, leaves, strict=True)) / sum(weights)

    assert_close(named(cx.accumulate(parts, weights)), by_name(jax.tree.map(mean, *expected)))
    equal = jax.tree.map(lambda *leaves: sum(leaves) / 3, *expected)
    assert_close(named(cx.accumulate(parts)), by_name(equal))


@nnx.jit
def scanned(model, batches):
    graph, state = nnx.split(model)

    def one(state, batch):
        model = nnx.merge(graph, state)
        _, grads = cx.value_and_grad(models.masked_loss)(model, batch)
        return nnx.state(model), grads

    state, grads = jax.lax.scan(one, state, batches)
    nnx.update(model, state)
    return cx.accumulate(grads, weights=batches.where.sum((1, 2)))


def test_micro_batches_in_a_scan_are_those_of_a_list():
    model = models.lm(dropout=True)
    other = nnx.clone(model)
    grads = scanned(model, models.stacked(3))
    parts = [models.gradients(models.masked_loss)[0](other, batch(i))[1] for i in range(3)]
    listed = cx.accumulate(parts, [batch(i).where.sum() for i in range(3)])
    assert_close(named(grads), named(listed))
    assert int(model.head.draws[...]) == int(other.head.draws[...]) == 3
    # One draw for the head's sampler, of all predictions.
    (joined,) = grads.draws["head"]
    assert joined.labels.shape == (3 * batch().labels.size, 1)
    models.assert_equal_trees(joined.labels, listed.draws["head"][0].labels)


def test_micro_batches_are_one_large_batch():
    """All classes are candidates, so that the draws are the same."""
    model = models.lm(sampler=models.EVERYTHING, tied=True)
    together = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), models.stacked(3))
    dense = models.gradients(models.masked_loss)[1](nnx.clone(model), together)[1]
    assert_close(named(scanned(model, models.stacked(3))), by_name(dense))


def test_a_penalty_on_every_parameter_has_the_dense_gradient():
    def penalty(model):
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))

    model = models.lm(tied=True)
    grads = assert_dense_gradients(model, penalty)
    np.testing.assert_allclose(grads.rows["head.vectors"], 2 * model.words.embedding[...], rtol=1e-6)
    beside = assert_dense_gradients(
        model, lambda model, batch: models.mean_loss(model, batch) + penalty(model), batch()
    )
    assert beside.rows["head.vectors"].shape == (NUM, DIM)


def test_all_logits_under_a_cross_entropy_have_the_dense_gradient():
    def entropy(model, batch):
        logits = model.head(model(batch.tokens))
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels))

    alone = assert_dense_gradients(models.lm(), entropy, batch())
    assert isinstance(alone.rows["words.embedding"], RowGradients)
    assert alone.rows["head.vectors"].shape == (NUM, DIM)
    assert_dense_gradients(models.lm(tied=True), lambda m, b: entropy(m, b) + models.mean_loss(m, b), batch())


def test_a_whole_table_without_a_gradient_leaves_row_gradients():
    def loss(model, batch):
        spread = jnp.std(jax.lax.stop_gradient(model.words.embedding[...]))
        return jnp.mean(model.words(batch.tokens) ** 2) / spread

    grads = assert_dense_gradients(models.lm(), loss, batch())
    assert isinstance(grads.rows["words.embedding"], RowGradients)


def test_what_arguments_share_has_its_gradient_wherever_it_is_differentiated():
    """In one argument it stands before, in the other one after what is differentiated."""
    words, layer = cx.Embed(5, 2, rngs=nnx.Rngs(0)), nnx.Linear(2, 2, rngs=nnx.Rngs(1))
    pair = nnx.Dict(words=words, layer=layer)

    def loss(before, words, layer, after):
        return jnp.sum(before["layer"](words(jnp.array([3, 1, 3]))) * layer(after["words"](jnp.array([1, 2, 2]))))

    value, whole = cx.value_and_grad(loss)(pair, words, layer, pair)
    other, (of_words, of_layer) = cx.value_and_grad(loss, argnums=(1, -2))(pair, words, layer, pair)
    assert value == other
    expected = named(whole)
    assert_close(
        {f"words.{name}": of for name, of in named(of_words).items()},
        {"words.embedding": expected.pop("words.embedding")},
    )
    assert_close({f"layer.{name}": of for name, of in named(of_layer).items()}, expected)
    assert all(np.any(of) for of in named(of_layer).values())


def test_row_gradients_of_plain_pytrees_are_those_of_jax():
    key = jax.random.key(1)
    tables = {"words": jax.random.normal(key, (NUM, DIM)), "classes": [jnp.ones((NUM, DIM)) / 9, jnp.zeros(NUM)]}
    params = {"mix": jax.random.normal(key, (DIM, DIM)), "scale": jnp.float32(0.5)}
    state = models.UNIFORM.init(key, cx.Classes(tables["classes"][0]))

    def loss(tables, params, batch, *, key):
        h = params["scale"] * cx.rows.lookup(tables["words"], batch.tokens) @ params["mix"]
        h += cx.rows.lookup(tables["words"], batch.labels[:, ::-1])
        classes = cx.Classes(*tables["classes"])
        options = {"sampler": models.UNIFORM, "state": state, "key": key, "loss": cx.losses.css, "where": batch.where}
        value, draw = cx.sampled_loss(h, batch.labels, classes, **options, return_draw=True)
        return value, draw.hits

    of_rows = jax.jit(cx.rows.value_and_grad(loss, has_aux=True))
    dense = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (value, hits), grads = of_rows(tables, params, batch(), key=key)
    (expected_value, expected_hits), (of_tables, of_params) = dense(tables, params, batch(), key=key)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    np.testing.assert_array_equal(hits, expected_hits)
    assert jax.tree.structure(grads.params) == jax.tree.structure(params)
    assert_close(grads.params, of_params)
    assert_close({"words": models.scattered(grads.rows["words"])}, {"words": of_tables["words"]})
    for entry, of_table in zip(grads.rows["classes"], of_tables["classes"], strict=True):
        assert isinstance(entry, RowGradients)
        np.testing.assert_allclose(models.scattered(entry), of_table, rtol=1e-6, atol=1e-6)


def test_a_table_of_plain_arrays_that_is_used_whole_has_the_dense_gradient():
    tables = (jnp.arange(12.0).reshape(6, 2), jnp.ones((5, 1)), jnp.ones((4, 1)))

    def loss(tables, scale, ids):
        rows = cx.rows.lookup(tables[0], ids)
        return (
            scale * jnp.sum(rows**2) + jnp.sum(jnp.sin(tables[0][...])) + jnp.sum(cx.rows.lookup(tables[1], ids) ** 2)
        )

    ids = jnp.array([4, 1, -1, 4])
    value, grads = cx.rows.value_and_grad(loss)(tables, 2.0, ids)
    expected_value, (of_tables, of_scale) = jax.value_and_grad(loss, argnums=(0, 1))(tables, 2.0, ids)
    np.testing.assert_allclose([value, grads.params], [expected_value, of_scale], rtol=1e-6)
    np.testing.assert_allclose(grads.rows[0], of_tables[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(models.scattered(grads.rows[1]), of_tables[1], rtol=1e-6)
    assert grads.rows[2].ids.shape == (0,)


def test_ids_found_in_the_whole_table_leave_row_gradients():
    """As for hard negatives: there is no gradient through integers."""

    def loss(model, batch):
        ids = model.head.top_k(model(batch.tokens), 3)[1]
        return jnp.sum(jnp.sin(cx.rows.lookup(model.head.vectors, ids)))

    grads = assert_dense_gradients(models.lm(), loss, batch())
    assert isinstance(grads.rows["head.vectors"], RowGradients)
