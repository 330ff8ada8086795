"""The front door inside what users have: their jit, scans, optimizers, precision, heads, modes and checkpoints."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import candax as cx
from tests.frontdoor import models
from tests.frontdoor.models import DIM, NUM, assert_equal_trees, batch, by_name

STEPS = 3


def arrays(node, *filters):
    """Copies of a module's arrays by path."""
    return {name: jnp.array(leaf) for name, leaf in by_name(nnx.state(node, *filters)).items()}


@nnx.jit
def update(model, optimizer, grads):
    optimizer.update(model, grads)


@nnx.jit
def train_step(model, optimizer, batch):
    loss, grads = cx.value_and_grad(models.masked_loss)(model, batch)
    optimizer.update(model, grads)
    return loss


def rates_by_path(params):
    """Another rate for each kind of parameter, tables among them."""

    def label(path, leaf):
        name = jax.tree_util.keystr(path)
        return next(kind for kind in ("words", "vectors", "biases", "layer") if kind in name)

    return jax.tree_util.tree_map_with_path(label, params)


def words_or_not(params):
    return jax.tree.map(lambda label: "words" if label == "words" else "others", rates_by_path(params))


def tables_or_not(params):
    return jax.tree.map(lambda label: "others" if label == "layer" else "tables", rates_by_path(params))


RATES = {"words": 0.9, "vectors": 0.5, "biases": 0.1, "layer": 0.3}
BY_PATH = optax.multi_transform({label: optax.sgd(rate) for label, rate in RATES.items()}, rates_by_path)
FROZEN = optax.multi_transform({"words": optax.set_to_zero(), "others": optax.sgd(0.5)}, words_or_not)
SCHEDULED = optax.adagrad(optax.linear_schedule(1.0, 0.1, STEPS))
WITHOUT_WORDS = nnx.All(nnx.Param, nnx.Not(nnx.PathContains("words")))
TWO = optax.multi_transform({"tables": optax.adagrad(0.2), "others": optax.sgd(0.1, momentum=0.9)}, tables_or_not)
# Of each: the transformation of everything, and what the optimizer of the front door is given for the same.
OPTIMIZERS = {
    "sgd": (optax.sgd(0.5), {"tx": optax.sgd(0.5)}),
    "adagrad": (optax.adagrad(0.5), {"tx": optax.adagrad(0.5)}),
    "a schedule": (SCHEDULED, {"tx": SCHEDULED}),
    "rates by path": (BY_PATH, {"tx": BY_PATH}),
    "a frozen table": (FROZEN, {"tx": FROZEN}),
    "a table left out": (optax.sgd(0.5), {"tx": optax.sgd(0.5), "wrt": WITHOUT_WORDS}),
    "one global norm": (
        optax.chain(optax.clip_by_global_norm(0.05), optax.sgd(0.5)),
        {"tx": optax.sgd(0.5), "clip_norm": 0.05},
    ),
    "another one of tables": (TWO, {"tx": optax.sgd(0.1, momentum=0.9), "tables": optax.adagrad(0.2)}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_that_of_a_dense_optimizer(name):
    """Of transformations that leave a row without a gradient as it is."""
    dense_tx, options = OPTIMIZERS[name]
    model, dense = models.lm(), models.lm()
    optimizer, wrt = cx.Optimizer(model, **options), options.get("wrt", nnx.Param)
    dense_optimizer = nnx.Optimizer(dense, dense_tx, wrt=wrt)
    start = arrays(model, nnx.Param)
    by_rows, by_arrays = models.gradients(models.masked_loss)
    for i in range(STEPS):
        _, grads = by_rows(model, batch(i))
        update(model, optimizer, grads)
        if i == 0 and name == "one global norm":
            assert float(grads.norm()) > 0.1
        _, grads = by_arrays(dense, batch(i))
        update(dense, dense_optimizer, nnx.filter_state(grads, wrt))
    after = arrays(model, nnx.Param)
    models.assert_close(after, arrays(dense, nnx.Param))
    frozen = {"words.embedding"} if name in ("a frozen table", "a table left out") else set()
    assert {name for name in start if np.array_equal(start[name], after[name])} == frozen


def test_weight_decay_by_rank_acts_on_used_rows():
    by_rank = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)  # noqa: E731
    tx = optax.chain(optax.add_decayed_weights(0.1, mask=by_rank), optax.sgd(0.5))
    model, dense = models.lm(), models.lm()
    for of_model in (model, dense):
        of_model.head.biases[...] = jnp.ones(NUM)
    start = arrays(model, nnx.Param)
    by_rows, by_arrays = models.gradients(models.masked_loss)
    _, grads = by_rows(model, batch())
    update(model, cx.Optimizer(model, tx), grads)
    update(dense, nnx.Optimizer(dense, tx, wrt=nnx.Param), by_arrays(dense, batch())[1])
    after, expected = arrays(model, nnx.Param), arrays(dense, nnx.Param)
    for name, entry in grads.rows.items():
        used = np.isin(np.arange(NUM), entry.ids)
        assert 0 < used.sum() < NUM
        np.testing.assert_allclose(after[name][used], expected[name][used], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(after[name][~used], start[name][~used])
        # The dense optimizer makes unused rows shorter, but no biases.
        assert np.any(expected[name][~used] != start[name][~used]) == (name != "head.biases")
    np.testing.assert_allclose(after["layer.kernel"], expected["layer.kernel"], rtol=1e-6, atol=1e-6)


def test_micro_batches_train_like_multi_steps():
    model, dense = models.lm(), models.lm()
    graph = nnx.graphdef(model)

    @nnx.jit
    def accumulated_step(model, optimizer, batches):
        def one(state, batch):
            model = nnx.merge(graph, state)
            _, grads = cx.value_and_grad(models.mean_loss)(model, batch)
            return nnx.state(model), grads

        state, grads = jax.lax.scan(one, nnx.state(model), batches)
        nnx.update(model, state)
        optimizer.update(model, cx.accumulate(grads))

    accumulated_step(model, cx.Optimizer(model, optax.sgd(0.5)), models.stacked(2))
    optimizer = nnx.Optimizer(dense, optax.MultiSteps(optax.sgd(0.5), 2), wrt=nnx.Param)
    dense_gradients = nnx.jit(nnx.value_and_grad(models.mean_loss))
    for i in range(2):
        update(dense, optimizer, dense_gradients(dense, batch(i))[1])
    models.assert_close(arrays(model, nnx.Param), arrays(dense, nnx.Param))
    with pytest.raises(ValueError, match="collects gradients"):
        cx.Optimizer(model, optax.MultiSteps(optax.sgd(0.5), 2).gradient_transformation())


def test_steps_in_jax_jit_and_in_a_scan_are_those_of_nnx_jit():
    model, other = models.lm(dropout=True), models.lm(dropout=True)
    optimizer, other_optimizer = [cx.Optimizer(of, optax.adam(0.1), clip_norm=0.1) for of in (model, other)]
    for i in range(STEPS):
        train_step(model, optimizer, batch(i))
    graph, state = nnx.split((other, other_optimizer))

    @jax.jit
    def epoch(state, batches):
        def one(state, batch):
            model, optimizer = nnx.merge(graph, state)
            loss, grads = cx.value_and_grad(models.masked_loss)(model, batch)
            optimizer.update(model, grads)
            return nnx.state((model, optimizer)), loss

        return jax.lax.scan(one, state, batches)

    state, losses = epoch(state, models.stacked(STEPS))
    assert losses.shape == (STEPS,)
    nnx.update((other, other_optimizer), state)
    models.assert_close(arrays(other, nnx.Param), arrays(model, nnx.Param))
    assert int(other_optimizer.step[...]) == int(other.head.draws[...]) == STEPS


def test_a_second_step_does_not_compile_again():
    traced = []

    @partial(nnx.jit, donate_argnums=(0, 1))
    def step(model, optimizer, batch):
        traced.append(None)
        loss, grads = cx.value_and_grad(models.masked_loss)(model, batch)
        optimizer.update(model, grads)
        return loss

    model = models.lm(sampler=cx.samplers.every(models.SAMPLERS["learned_unigram"], 2), tied=True)
    optimizer = cx.Optimizer(model, optax.adam(optax.cosine_decay_schedule(0.1, 10)))
    losses = []
    for i in range(4):
        cx.refresh(model, i)
        losses.append(float(step(model, optimizer, batch(i))))
    assert len(traced) == 1
    assert np.all(np.isfinite(losses))


@pytest.mark.parametrize("transform", [nnx.jit, lambda make: partial(nnx.eval_shape, make)], ids=["jit", "eval_shape"])
def test_a_model_and_its_optimizer_are_made_in_a_transformation(transform):
    """As models are made in parts on many devices, or abstractly to read a checkpoint into."""

    def make():
        head = cx.Head(NUM, DIM, sampler=models.UNIFORM, rngs=nnx.Rngs(0))
        return head, cx.Optimizer(head, optax.adam(0.1))

    made, expected = [jax.tree.leaves(nnx.to_pure_dict(nnx.state(of))) for of in (transform(make)(), make())]
    assert [(leaf.shape, leaf.dtype) for leaf in made] == [(leaf.shape, leaf.dtype) for leaf in expected]


def in_bfloat16(model, batch):
    h = model(batch.tokens).astype(jnp.bfloat16)
    return model.head.loss(h, batch.labels)


def test_narrow_embeddings_have_nearly_the_gradients_of_wide_ones():
    model = models.lm(dropout=True)
    wide, narrow = [
        nnx.jit(cx.value_and_grad(loss))(nnx.clone(model), batch()) for loss in (models.mean_loss, in_bfloat16)
    ]
    assert narrow[0].dtype == jnp.float32
    np.testing.assert_allclose(narrow[0], wide[0], rtol=1e-2)
    for name, gradient in models.named(wide[1]).items():
        got = models.named(narrow[1])[name]
        assert got.dtype == np.float32
        assert np.linalg.norm(got - gradient) < 0.02 * np.linalg.norm(gradient)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_narrow_tables_are_trained_with_wide_gradients(rounding):
    model = models.lm(dtype=jnp.bfloat16)
    model.words = cx.Embed(NUM, DIM, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(1))
    start = arrays(model, cx.rows.Table)
    optimizer = cx.Optimizer(model, optax.adam(0.1), rounding=rounding)
    loss, grads = models.gradients(models.mean_loss)[0](model, batch())
    assert loss.dtype == jnp.float32
    for entry in grads.rows.values():
        assert entry.rows.dtype == jnp.float32
        assert np.all(np.isfinite(entry.rows))
        assert np.any(entry.rows)
    update(model, optimizer, grads)
    for name, table in arrays(model, cx.rows.Table).items():
        assert table.dtype == jnp.bfloat16
        used = np.isin(np.arange(NUM), grads.rows[name].ids)
        changed = np.any(np.reshape(table != start[name], (NUM, -1)), axis=1)
        np.testing.assert_array_equal(changed, used)
    moments = [leaf for leaf in jax.tree.leaves(nnx.to_pure_dict(nnx.state(optimizer))) if leaf.ndim == 2]
    assert {leaf.dtype for leaf in moments} == {jnp.dtype(jnp.float32)}


class ManyHeads(nnx.Module):
    """Three heads of one body: two share the table of the input, one of them with fewer classes."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.words = cx.Embed(NUM, DIM, rngs=rngs)
        samplers = models.SAMPLERS
        self.all = cx.Head(NUM, table=self.words, sampler=samplers["learned_unigram"], rngs=rngs)
        self.some = cx.Head(NUM // 2, table=self.all, sampler=samplers["lsh"], loss=cx.losses.css, rngs=rngs)
        self.own = nnx.List([cx.Head(9, DIM, sampler=cx.samplers.uniform(4), biases=False, rngs=rngs)])


def loss_of_many(model, batch):
    h = model.words(batch.tokens)
    loss = model.all.loss(h, batch.labels) + 0.5 * model.some.loss(h, batch.labels % (NUM // 2), where=batch.where)
    # Two draws of one head.
    return loss + sum(model.own[0].loss(h, labels % 9, reduction="sum") for labels in (batch.labels, batch.tokens))


def test_several_heads_some_of_one_table_have_the_dense_gradient_and_follow():
    model = ManyHeads()
    optimizer = cx.Optimizer(model, optax.adagrad(0.5))
    before = arrays(model)
    grads = models.assert_dense_gradients(model, loss_of_many, batch())
    assert set(grads.rows) == {"all.vectors", "all.biases", "some.biases", "own.0.vectors"}
    assert {name: len(draws) for name, draws in grads.draws.items()} == {"all": 1, "some": 1, "own.0": 2}
    assert [int(head.draws[...]) for head in (model.all, model.some, model.own[0])] == [1, 1, 2]
    update(model, optimizer, grads)
    after = arrays(model)
    followed = {name.split(".")[0] for name in before if "state" in name and np.any(before[name] != after[name])}
    assert followed == {"all", "some"}
    assert model.all.vectors is model.words.embedding


def test_evaluation_changes_nothing():
    model = models.lm(sampler=models.SAMPLERS["learned_unigram"], dropout=True, batch_norm=True)
    loss = nnx.jit(models.masked_loss)
    model.eval()
    before = jax.tree.map(jnp.array, nnx.to_pure_dict(nnx.state(model)))
    first, second = loss(model, batch()), loss(model, batch())
    assert float(first) == float(second)
    _, grads = models.gradients(models.masked_loss)[0](model, batch())
    assert grads.draws == {}
    assert_equal_trees(nnx.to_pure_dict(nnx.state(model)), before)
    model.train()
    assert float(loss(model, batch())) != float(loss(model, batch()))
    assert int(model.head.draws[...]) == 2


def test_a_run_resumed_from_a_checkpoint_is_the_unbroken_one(tmp_path):
    def start():
        model = models.lm(sampler=models.SAMPLERS["learned_unigram"], dropout=True, batch_norm=True, tied=True)
        return model, cx.Optimizer(model, optax.adamw(0.1), tables=optax.adagrad(0.2), clip_norm=1.0)

    unbroken = start()
    for i in range(2):
        train_step(*unbroken, batch(i))
    names = ("model", "optimizer")
    with ocp.StandardCheckpointer() as checkpointer:
        for name, node in zip(names, unbroken, strict=True):
            checkpointer.save(tmp_path / name, nnx.state(node))
    for i in range(2, 4):
        train_step(*unbroken, batch(i))
    resumed = start()
    with ocp.StandardCheckpointer() as checkpointer:
        for name, node in zip(names, resumed, strict=True):
            nnx.update(node, checkpointer.restore(tmp_path / name, nnx.state(node)))
    assert int(resumed[0].head.draws[...]) == 2
    for i in range(2, 4):
        train_step(*resumed, batch(i))
    for node, other in zip(resumed, unbroken, strict=True):
        assert_equal_trees(nnx.to_pure_dict(nnx.state(node)), nnx.to_pure_dict(nnx.state(other)))


def spoil_label(batch):
    return batch._replace(labels=batch.labels.at[0, 0].set(NUM), where=batch.where.at[0, 0].set(True))


def spoil_token(batch):
    return batch._replace(tokens=batch.tokens.at[1, 2].set(-7), where=batch.where.at[1, 2].set(True))


@pytest.mark.parametrize("spoil", [spoil_label, spoil_token])
def test_a_step_with_an_id_out_of_range_writes_nothing(spoil):
    model = models.lm(sampler=models.SAMPLERS["learned_unigram"])
    optimizer = cx.Optimizer(model, optax.adam(0.1))
    train_step(model, optimizer, batch(0))
    before, of_optimizer = arrays(model), arrays(optimizer)
    assert np.isnan(train_step(model, optimizer, spoil(batch(1))))
    assert int(optimizer.skipped[...]) == 1
    changed = {name for name, leaf in arrays(model).items() if np.any(leaf != before[name])}
    assert changed == {"head.draws"}
    changed = {name for name, leaf in arrays(optimizer).items() if np.any(leaf != of_optimizer[name])}
    assert changed == {"step", "skipped"}
    assert np.isfinite(train_step(model, optimizer, batch(2)))
    assert int(optimizer.skipped[...]) == 1
    with pytest.raises(ValueError, match=r"expected (labels|ids of words.embedding) in 0 \.\.\. 39 .* got (40|-7)"):
        cx.check(model, spoil(batch(1)), call=models.masked_loss)
