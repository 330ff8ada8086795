"""Exact optimizers by rows: where dense ones come to, in float64; whoever reads a row; refusals."""

import copy
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.rows import exact, lookup, rowwise
from candax.rows.missed import ExactState, plan
from tests.frontdoor import models

RATES = {
    "constant": 1e-3,
    "warm-up": optax.linear_schedule(0.0, 1e-3, 60),
    "cosine": optax.warmup_cosine_decay_schedule(0.0, 1e-3, 30, 3000),
}
BETAS = [(0.9, 0.999), (0.9, 0.99), (0.95, 0.999), (0.9, 0.95)]
# Steps of the last update, and how many were missed since.
EARLY, LATE = (1, 3, 10), (30, 100, 1000, 3000)
GAPS = (1, 2, 7, 30, 150, 1000, 9999)
SCALES = (1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1.0)


@functools.cache
def rates_of(rate):
    """The rate of each step, up to the last one that is looked at."""
    steps = jnp.arange(max(LATE) + max(GAPS))
    return np.asarray(jax.jit(jax.vmap(lambda i: jnp.float32(rate(i) if callable(rate) else rate)))(steps), np.float64)


def dense_path(table, mean, square, first, gap, rate, b1, b2, eps, decay):
    """Rows after steps without gradient, in float64."""
    for step, of_step in enumerate(rates_of(rate)[first : first + gap], first + 1):
        mean, square = b1 * mean, b2 * square
        update = mean / (1 - b1**step) / (np.sqrt(square / (1 - b2**step)) + eps) + decay * table
        table = table - of_step * update
    return table


def log_decay(rate, steps, decay):
    return np.cumsum([0.0, *np.log1p(-decay * rates_of(rate)[:steps])])


QUICK = {("constant", 1e-8, 0.0), ("cosine", 1e-3, 0.1)}
ALL = [
    pytest.param(*of, marks=() if of in QUICK else pytest.mark.slow)
    for of in itertools.product(RATES, (1e-8, 1e-3), (0.0, 0.1))
]


@pytest.mark.parametrize(("rate", "eps", "decay"), ALL)
@pytest.mark.parametrize("betas", BETAS)
def test_a_missed_path_is_the_dense_one(betas, rate, eps, decay):
    b1, b2 = betas
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(len(SCALES), 4)) * np.array(SCALES)[:, None]
    settle = jax.jit(exact.exact_adamw(RATES[rate], b1, b2, eps, decay).settle)
    decays = log_decay(RATES[rate], max(LATE) + max(GAPS), decay)
    for firsts, bound in ((EARLY, 1e-3), (LATE, 1e-5)):
        for first in firsts:
            # As after many gradients alike, up to this step.
            mean, square = gradients * (1 - b1**first), gradients**2 * (1 - b2**first)
            table = rng.normal(size=gradients.shape) * (decay > 0)
            for gap in GAPS:
                mean32, square32, table32 = (np.float32(of) for of in (mean, square, table))
                of_rows = lambda value, dtype: jnp.full(len(SCALES), value, dtype)  # noqa: E731
                state = ExactState(
                    jnp.int32(first + gap), of_rows(first, jnp.int32), (jnp.array(mean32), jnp.array(square32)),
                    jnp.array([decays[first + gap], 0.0], jnp.float32) if decay else None,
                    of_rows(decays[first], jnp.float32) if decay else None,
                )  # fmt: skip
                after, moved = settle(state, jnp.array(table32))
                start = table32.astype(np.float64)
                wanted = dense_path(
                    start, mean32.astype(np.float64), square32.astype(np.float64), first, gap, RATES[rate], b1, b2, eps,
                    decay,
                )  # fmt: skip
                off = np.linalg.norm(start + np.asarray(moved, np.float64) - wanted, axis=1)
                size = np.linalg.norm(wanted, axis=1) + np.linalg.norm(wanted - start, axis=1)
                # Gradients of 1e-10 have squares that float32 does not hold.
                held = square32.min(axis=1) > 1e-37
                assert np.all(off[held] <= bound * size[held]), (first, gap, (off / size)[held])
                assert np.all(np.asarray(after.last) == first + gap)


def test_interpolation_without_range_is_finite():
    """Where one step was missed, the others of the window lie far outside of what is interpolated."""
    tx = exact.exact_adam(0.1, 0.9, 0.95)
    state = tx.init(jnp.ones((3, 2)))
    _, state = tx.update(jnp.ones((3, 2)), state, jnp.ones((3, 2)))
    _, moved = tx.settle(state._replace(step=jnp.int32(2)), jnp.ones((3, 2)))
    np.testing.assert_allclose(moved, -0.1 * (0.09 / 0.19) / math.sqrt(0.0475 / 0.0975), rtol=1e-5)


PAIRS = {
    "adam": (exact.exact_adam(0.05), optax.adam(0.05)),
    "adamw": (exact.exact_adamw(0.05, weight_decay=0.1), optax.adamw(0.05, weight_decay=0.1)),
    "schedule": (
        exact.exact_adamw(optax.cosine_decay_schedule(0.1, 50), 0.8, 0.95, 1e-3, 0.2),
        optax.adamw(optax.cosine_decay_schedule(0.1, 50), 0.8, 0.95, 1e-3, weight_decay=0.2),
    ),
    "rmsprop": (exact.exact_rmsprop(0.05, 0.8), optax.rmsprop(0.05, 0.8)),
    "momentum": (exact.exact_momentum(0.05, 0.8), optax.sgd(0.05, 0.8)),
    "nesterov": (
        exact.exact_momentum(optax.linear_schedule(0.1, 0.0, 50), 0.8, nesterov=True),
        optax.sgd(optax.linear_schedule(0.1, 0.0, 50), 0.8, nesterov=True),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_rows_that_are_read_now_and_then_are_those_of_optax(name):
    mine, dense = PAIRS[name]
    by_rows, table = rowwise(mine), jnp.asarray(np.random.default_rng(0).normal(size=(30, 3)), jnp.float32)
    targets = table[::-1]

    def loss(tables, params, ids):
        rows = lookup(tables, ids)
        return jnp.sum(jnp.tanh(rows - targets[ids]) ** 2 + jnp.sin(rows))

    @jax.jit
    def by_rows_step(table, state, ids):
        _, grads = cx.rows.value_and_grad(loss)(cx.rows.Lagging(table, state, by_rows), (), ids)
        return by_rows.update(grads.rows, state, table)[:2]

    @jax.jit
    def dense_step(table, state, ids):
        grads = jax.grad(loss)(table, (), ids)
        updates, state = dense.update(grads, state, table)
        return optax.apply_updates(table, updates), state

    whole, of_whole = table, dense.init(table)
    some, of_some = table, by_rows.init(table)
    for step in range(40):
        ids = jnp.asarray(np.random.default_rng(step).integers(0, 30, 5))
        whole, of_whole = dense_step(whole, of_whole, ids)
        some, of_some = by_rows_step(some, of_some, ids)
    assert float(jnp.abs(some - whole).max()) > 1e-3 or name == "rmsprop"
    state, settled = by_rows.settle(of_some, some)
    np.testing.assert_allclose(settled, whole, atol=2e-5)
    np.testing.assert_allclose(by_rows.read(of_some, some[3:5], jnp.array([3, 4])), settled[3:5], rtol=1e-6)
    np.testing.assert_array_equal(by_rows.settle(state, settled)[1], settled)
    assert np.isnan(by_rows.read(of_some, jnp.full((1, 3), jnp.nan), jnp.array([30]))).all()


ADAMW = {"learning_rate": 0.02, "weight_decay": 0.1}
# One for all: steps with another are compiled anew.
OF_OPTAX = optax.adamw(**ADAMW)


def trained(tables, steps=25, whole=False, **options):
    model = models.lm(sampler=models.UNIFORM, **options)
    optimizer = cx.Optimizer(model, OF_OPTAX, tables=tables)
    return model, optimizer, run(step_of(cx.value_and_grad, whole), model, optimizer, steps)


def dense(steps=25, whole=False, **options):
    model = models.lm(sampler=models.UNIFORM, **options)
    optimizer = nnx.Optimizer(model, OF_OPTAX, wrt=nnx.Param)
    return model, run(step_of(nnx.value_and_grad, whole), model, optimizer, steps)


def run(step, model, optimizer, steps):
    return [float(step(model, optimizer, models.batch(number))) for number in range(steps)]


@functools.cache
def step_of(value_and_grad, whole):
    """A training step; ``whole``: the loss also reads the whole table."""

    @nnx.jit
    def step(model, optimizer, batch):
        def loss_fn(model):
            loss = models.masked_loss(model, batch)
            return loss + 0.01 * jnp.mean(model.head(jnp.ones((1, models.DIM))) ** 2) if whole else loss

        loss, grads = value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    return step


def exact_adamw():
    return exact.exact_adamw(ADAMW["learning_rate"], weight_decay=ADAMW["weight_decay"])


@pytest.mark.parametrize("options", [{}, {"tied": True}, {"whole": True}, {"tied": True, "dropout": True}])
def test_a_model_is_trained_as_by_dense_adamw(options):
    wanted, of_dense = dense(**options)
    got, _, losses = trained(exact_adamw(), **options)
    np.testing.assert_allclose(losses, of_dense, rtol=2e-5)
    h, ids = jnp.ones((2, models.DIM)), jnp.arange(models.NUM)
    # Before anything is settled: all who read rows see them as they should be.

    @nnx.jit
    def reads(model):
        return model.head(h), model.words(ids), model.head.top_k(h, 3)[0], model.head.log_prob(h, ids[:2])

    for one, other in zip(reads(got), reads(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    lagging = np.asarray(got.words.embedding[...])
    cx.rows.settle(got)
    for name in ("words.embedding", "head.biases"):
        one, other = (functools.reduce(getattr, name.split("."), model)[...] for model in (got, wanted))
        np.testing.assert_allclose(one, other, atol=2e-5)
    assert options.get("whole") or np.abs(lagging - got.words.embedding[...]).max() > 1e-3


def test_a_lazy_optimizer_after_an_exact_one_begins_with_settled_rows():
    model, _, _ = trained(exact_adamw(), steps=10)
    other = nnx.clone(model)
    cx.rows.settle(other)
    optimizer = cx.Optimizer(model, OF_OPTAX)
    assert not hasattr(model.head, "vectors_slots")
    np.testing.assert_array_equal(model.head.vectors[...], other.head.vectors[...])
    step_of(cx.value_and_grad, False)(model, optimizer, models.batch())


def test_rows_that_are_added_begin_where_they_are():
    model, optimizer, _ = trained(exact_adamw(), steps=10)
    model.head.grow(models.NUM + 5, rngs=nnx.Rngs(1))
    optimizer.grow(model)
    new = np.asarray(model.head.vectors[models.NUM :])
    step_of(cx.value_and_grad, False)(model, optimizer, models.batch())
    cx.rows.settle(model)
    # Those that were not drawn have one step of weight decay behind them.
    drawn = np.asarray(model.head.vectors_slots.get_value().moments[0])[models.NUM :].any(axis=1)
    share = 1 - ADAMW["learning_rate"] * ADAMW["weight_decay"]
    np.testing.assert_allclose(model.head.vectors[models.NUM :][~drawn], new[~drawn] * share, rtol=1e-6)
    assert not drawn.all()


def test_micro_batches_and_a_frozen_table():
    results = []
    for exactly in (True, False):
        model = models.lm(sampler=models.UNIFORM)
        trained = nnx.All(nnx.Param, nnx.Not(nnx.PathContains("words")))
        if exactly:
            optimizer = cx.Optimizer(model, OF_OPTAX, tables=exact_adamw(), wrt=trained)
            gradient = cx.value_and_grad(models.masked_loss)
        else:
            optimizer = nnx.Optimizer(model, OF_OPTAX, wrt=trained)
            gradient = nnx.value_and_grad(models.masked_loss, argnums=nnx.DiffState(0, trained))

        @nnx.jit
        def step(model, optimizer, first, second, gradient=gradient, exactly=exactly):
            parts = [gradient(model, batch)[1] for batch in (first, second)]
            mean = cx.accumulate(parts) if exactly else jax.tree.map(lambda *of: sum(of) / 2, *parts)
            optimizer.update(model, mean)

        for number in range(0, 20, 2):
            step(model, optimizer, models.batch(number), models.batch(number + 1))
        cx.rows.settle(model)
        results.append([model.head.vectors[...], model.words.embedding[...], model.head.biases[...]])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_lazy_moments_come_to_something_else():
    wanted, _ = dense()
    got, _, _ = trained(OF_OPTAX)
    assert float(jnp.abs(got.head.vectors[...] - wanted.head.vectors[...]).max()) > 0.01


def test_a_loss_that_is_read_in_evaluation_sees_settled_rows():
    model, _, _ = trained(exact_adamw())
    model.eval()
    loss = nnx.jit(lambda model: models.masked_loss(model, models.batch(3)))
    before = float(loss(model))
    cx.rows.settle(model)
    assert float(loss(model)) == pytest.approx(before, rel=1e-6)


def test_a_step_that_is_not_finite_is_none():
    model, optimizer, _ = trained(exact_adamw(), steps=3)
    before = jax.tree.map(jnp.array, nnx.to_pure_dict(nnx.state(model, nnx.Not(cx.rows.tables.DrawCount))))

    @nnx.jit
    def step(model, optimizer):
        _, grads = cx.value_and_grad(lambda model: jnp.nan * models.masked_loss(model, models.batch()))(model)
        optimizer.update(model, grads)

    step(model, optimizer)
    models.assert_equal_trees(nnx.to_pure_dict(nnx.state(model, nnx.Not(cx.rows.tables.DrawCount))), before)
    assert int(optimizer.skipped[...]) == 1


def test_a_resumed_fit_is_the_unbroken_one(tmp_path):
    adam = optax.adam(0.01)  # one for all three, which are compiled once

    def fit(steps, folder):
        model = models.lm(sampler=models.UNIFORM, tied=True)
        optimizer = cx.Optimizer(model, adam, tables=exact.exact_adam(0.01))
        batches = [models.batch(step) for step in range(4)]
        done = cx.training.fit(
            model, optimizer, batches, loss_fn=models.masked_loss, num_steps=steps,
            folder=folder, checkpoint_every=4, progress=False,
        )  # fmt: skip
        return nnx.to_pure_dict(nnx.state((done.model, done.optimizer)))

    whole = fit(12, tmp_path / "whole")
    fit(8, tmp_path / "parts")
    models.assert_equal_trees(fit(12, tmp_path / "parts"), whole)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: exact.exact_adam(0.1, 0.99, 0.9), "b1 < sqrt"),
        (lambda: exact.exact_adam(0.1, 0.9, 0.9), r"12 nodes .* off\. Take a larger b2"),
        (lambda: exact.exact_adam(0.1, eps=0.0), "eps > 0"),
        (lambda: exact.exact_adam(-0.1), "a rate of at least 0"),
        (lambda: exact.exact_adamw(0.1, weight_decay=20.0), "weight_decay"),
        (lambda: exact.exact_momentum(0.1, 1.0), "momentum between 0 and 1"),
        (lambda: exact.exact_rmsprop(0.1, 0.0), "decay between 0 and 1"),
        (lambda: cx.Optimizer(models.lm(), exact.exact_adam(0.1)), "for tables alone"),
        (lambda: rowwise(exact.exact_adam(0.1)).init(jnp.zeros((3, 2), jnp.bfloat16)), "rows of float32"),
        (lambda: cx.rows.averaged(exact.exact_adam(0.1), 0.9), "exact"),
        (lambda: rowwise(optax.chain(optax.add_decayed_weights(0.1), exact.exact_adam(0.1))), "weight_decay of"),
        (lambda: rowwise(optax.lamb(0.1)), "exact_adamw"),
    ],
)
def test_what_has_no_such_form_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_table_in_a_list_has_no_place_for_slots():
    class Model(nnx.Module):
        def __init__(self):
            self.tables = nnx.List([cx.rows.Table(jnp.ones((3, 2)))])

    with pytest.raises(ValueError, match="attribute of a module"):
        cx.Optimizer(Model(), optax.adam(0.1), tables=exact.exact_adam(0.1))


def test_the_plan_is_small():
    assert {betas: plan(*betas) for betas in BETAS} == {
        (0.9, 0.999): (132, 5), (0.9, 0.99): (138, 6), (0.95, 0.999): (272, 5), (0.9, 0.95): (174, 9),
    }  # fmt: skip


def test_ready_made_encoders_read_settled_rows():
    encoder = cx.models.SparseMLP(12, 4, rngs=nnx.Rngs(0))
    optimizer = cx.Optimizer(encoder, optax.adam(0.1), tables=exact.exact_adam(0.1))
    batches = [cx.data.Batch(np.array([[i]], np.int32), np.ones((1, 1), np.float32), None) for i in (3, 5, 3)]
    for batch in batches[:2]:
        _, grads = cx.value_and_grad(lambda encoder, batch=batch: jnp.sum(encoder(batch) ** 2))(encoder)
        optimizer.update(encoder, grads)
    before = encoder(batches[2])
    lagging = np.asarray(encoder.bag[3])
    cx.rows.settle(encoder)
    np.testing.assert_allclose(encoder(batches[2]), before, rtol=1e-6)
    assert np.abs(lagging - encoder.bag[3]).max() > 1e-3


def test_optimizers_made_alike_are_compiled_once():
    traced = []

    @nnx.jit
    def step(model, optimizer):
        traced.append(1)
        _, grads = cx.value_and_grad(models.masked_loss)(model, models.batch())
        optimizer.update(model, grads)

    model, adam = models.lm(sampler=models.UNIFORM), optax.adam(0.01)
    for _ in range(2):
        step(model, cx.Optimizer(model, adam, tables=exact.exact_adam(0.01)))
    assert traced == [1]


def test_a_table_and_its_slots_may_have_their_first_paths_in_different_modules():
    class Model(nnx.Module):
        def __init__(self):
            self.words = cx.rows.Table(jnp.ones((20, 4)))
            self.words_head = cx.Head(20, table=self.words, sampler=cx.samplers.uniform(5), rngs=nnx.Rngs(0))

    model = Model()
    optimizer = cx.Optimizer(model, optax.adam(0.1), tables=exact.exact_adam(0.1))
    paths = [
        path for path, variable in nnx.iter_graph(model) if variable is model.words or variable is model.words_slots
    ]
    assert sorted(paths) == [("words",), ("words_head", "vectors_slots")]
    ids = jnp.arange(3)

    @nnx.jit
    def step(model, optimizer):
        grads = cx.value_and_grad(lambda model: model.words_head.loss(lookup(model.words, ids), ids))(model)[1]
        optimizer.update(model, grads)

    for _ in range(2):
        step(model, optimizer)
    assert int(model.words_slots.get_value().step) == 2


def test_a_whole_table_without_a_gradient_is_settled_too():
    model, _, _ = trained(exact_adamw(), steps=10)
    h = jnp.ones((1, models.DIM))

    def loss_fn(model):
        best = model.head.top_k(h, 3)
        return jnp.sum(model.words(jnp.arange(2))), (jax.lax.stop_gradient(best[0]), best[1])

    (_, (scores, ids)), grads = nnx.jit(cx.value_and_grad(loss_fn, has_aux=True))(model)
    assert set(grads.rows) == {"words.embedding"}
    wanted, wanted_ids = model.head.top_k(h, 3)
    np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_allclose(scores, wanted, rtol=1e-6)


def test_biases_of_classes_that_are_added_take_no_steps_from_before():
    words = cx.Embed(30, 4, rngs=nnx.Rngs(0))
    head = cx.Head(20, table=words, sampler=cx.samplers.uniform(5), counts=np.ones(20), rngs=nnx.Rngs(1))
    optimizer = cx.Optimizer(head, optax.sgd(0.1), tables=exact.exact_adamw(0.1, weight_decay=0.5))
    ids = jnp.arange(3)

    @nnx.jit
    def step(head, optimizer):
        optimizer.update(head, cx.value_and_grad(lambda head: head.loss(jnp.ones((3, 4)), ids))(head)[1])

    for _ in range(3):
        step(head, optimizer)
    head.grow(25, counts=np.ones(25), rngs=nnx.Rngs(2))
    np.testing.assert_allclose(head.classes().biases[20:25], np.log(1 / 25), rtol=1e-6)


def test_a_head_that_is_made_after_the_optimizer_reads_settled_rows():
    words = cx.Embed(9, 2, rngs=nnx.Rngs(0))
    optimizer = cx.Optimizer(words, optax.adam(0.1), tables=cx.rows.exact_adam(0.1))
    for ids in ([1, 2], [2, 3], [3, 4]):
        _, grads = cx.value_and_grad(lambda words, ids=ids: jnp.sum(words(jnp.array(ids)) ** 2))(words)
        optimizer.update(words, grads)
    head = cx.Head(9, table=words, biases=False, rngs=nnx.Rngs(1))
    h = jnp.ones((1, 2))
    np.testing.assert_allclose(head(h), words.attend(h), rtol=1e-6)
    assert not np.allclose(words.attend(h), h @ words.embedding[...].T)


def test_two_exact_optimizers_of_one_table_are_refused():
    words = cx.Embed(5, 2, rngs=nnx.Rngs(0))
    head = cx.Head(5, table=words, rngs=nnx.Rngs(1))
    for module in (words, head):
        cx.Optimizer(module, optax.adam(0.1), tables=cx.rows.exact_adam(0.1))
    ids = jnp.arange(2)
    with pytest.raises(ValueError, match=r"expected one exact optimizer for a table .* got two .* shape \(5, 2\)"):
        cx.value_and_grad(lambda words, head: head.loss(words(ids), ids), argnums=(0, 1))(words, head)


def test_a_model_and_its_optimizer_can_be_copied_on_the_way():
    def step(words, optimizer, ids):
        _, grads = cx.value_and_grad(lambda words: jnp.sum(words(jnp.array(ids)) ** 2))(words)
        optimizer.update(words, grads)

    words = cx.Embed(5, 2, rngs=nnx.Rngs(0))
    optimizer = cx.Optimizer(words, optax.adam(0.1), tables=cx.rows.exact_adam(0.1))
    step(words, optimizer, [1, 2])
    both = copy.deepcopy((words, optimizer))
    for of in ((words, optimizer), both):
        step(*of, [2, 3])
    cx.rows.settle(words)
    cx.rows.settle(both[0])
    np.testing.assert_array_equal(words.embedding[...], both[0].embedding[...])
