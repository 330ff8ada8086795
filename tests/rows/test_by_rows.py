"""Row-sparse training: unique rows, equality with optax, bit-identical untouched rows, refusals, cost."""

import itertools
import re
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

from candax.rows import by_rows, gather_rows, gradients, rowwise, scatter_rows, unique_rows

ELEMENTWISE: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.1),
    "sgd momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "sgd nesterov": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.1),
    "adamw": lambda: optax.adamw(0.1, weight_decay=0.1),
    "adagrad": lambda: optax.adagrad(0.1),
    "rmsprop": lambda: optax.rmsprop(0.1, momentum=0.5, centered=True),
    "lion": lambda: optax.lion(0.1),
    "schedule": lambda: optax.adam(optax.exponential_decay(0.1, 1, 0.5)),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "chain": lambda: optax.chain(
        optax.clip(0.5), optax.add_decayed_weights(0.1), optax.scale_by_adam(), optax.scale(-0.1)
    ),
}

# What each does that is not elementwise.
REFUSED: dict[str, Callable[[], optax.GradientTransformation]] = {
    "adafactor": lambda: optax.adafactor(0.1),
    "lamb": lambda: optax.lamb(0.1),
    "lars": lambda: optax.lars(0.1),
    "muon": lambda: optax.contrib.muon(0.1),
    "sm3": lambda: optax.sm3(0.1),
    "novograd": lambda: optax.novograd(0.1),
    "clip_by_global_norm": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)),
    "adaptive_grad_clip": lambda: optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(0.1)),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(0.1), 3),
    "add_noise": lambda: optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1)),
}


def check_unique(ids: np.ndarray, num_rows: int) -> None:
    for counted in (0, num_rows):  # rows per id up to which rows are counted and ids not sorted
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gradients, "_COUNTED", counted)
            check_distinct(ids, num_rows)


def check_distinct(ids: np.ndarray, num_rows: int) -> None:
    found = unique_rows(jnp.asarray(ids, jnp.int32), num_rows)
    unique, positions = np.asarray(found.ids), np.asarray(found.positions)
    assert unique.shape == (ids.size,)
    assert unique.dtype == positions.dtype == np.int32
    assert positions.shape == ids.shape
    wanted = np.unique(ids[ids >= 0])
    np.testing.assert_array_equal(unique[: len(wanted)], wanted)
    assert np.all(unique[len(wanted) :] >= num_rows)
    assert np.all(np.diff(unique) > 0), "sorted and unique, fillers included"
    np.testing.assert_array_equal(unique[positions][ids >= 0], ids[ids >= 0])
    assert np.all(unique[positions][ids < 0] >= num_rows)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(-1, 9), min_size=12, max_size=12))
def test_unique_rows(ids: list[int]) -> None:
    check_unique(np.array(ids), 10)
    check_unique(np.array(ids).reshape(3, 4), 10)


@pytest.mark.parametrize("ids", [[], [-1], [-1, -1, -1], [0], [9, 9, 9, 9], [9, 8, 7, 0]])
def test_unique_rows_at_the_edges(ids: list[int]) -> None:
    check_unique(np.array(ids, int), 10)


def test_unique_rows_of_a_large_table() -> None:
    check_distinct(np.array([2**30, 5, 2**30, -1, 2**30 - 1]), 2**30 + 1)


def test_gather_and_scatter_leave_fillers_out() -> None:
    table = jnp.arange(8.0).reshape(4, 2)
    ids = jnp.array([1, 3, 6, 7])
    assert gather_rows(table, ids).tolist() == [[2, 3], [6, 7], [0, 0], [0, 0]]
    written = scatter_rows(table, ids, jnp.full((4, 2), -1.0))
    assert written.tolist() == [[0, 1], [-1, -1], [4, 5], [-1, -1]]


@pytest.mark.parametrize(("chunk", "shape"), [(1024, (12,)), (5, (12, 3)), (5, (12, 2, 2))])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_with_every_row_touched_it_is_the_dense_optimizer(
    name: str, chunk: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_rows, "_CHUNK", chunk)
    monkeypatch.setattr(by_rows, "_MANY", 0)  # all rows in one pass are no chunks
    dense, sparse = ELEMENTWISE[name](), rowwise(ELEMENTWISE[name]())
    rng = np.random.default_rng(0)
    table = sparse_table = jnp.asarray(rng.normal(size=shape), jnp.float32)
    state, sparse_state = dense.init(table), sparse.init(table)
    update, dense_update = jax.jit(sparse.update), jax.jit(dense.update)
    for _ in range(4):
        grads = jnp.asarray(rng.normal(size=shape), jnp.float32)
        updates, state = dense_update(grads, state, table)
        table = optax.apply_updates(table, updates)
        done = update(grads, sparse_state, sparse_table, jnp.arange(12, dtype=jnp.int32))
        sparse_table, sparse_state = done.table, done.state
        np.testing.assert_allclose(sparse_table, table, rtol=2e-6, atol=1e-7)
        np.testing.assert_array_equal(done.rows, sparse_table)
        chex.assert_trees_all_equal_structs(sparse_state, state)
        for got, wanted in zip(jax.tree.leaves(sparse_state), jax.tree.leaves(state), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("chunk", "many"), [(1024, 0), (2, 0), (2, 2)], ids=["at once", "in chunks", "in one pass"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_untouched_rows_stay_bit_for_bit(name: str, chunk: int, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table and per-row state; touched rows do what the dense optimizer does on a table of those rows alone."""
    monkeypatch.setattr(by_rows, "_CHUNK", chunk)
    monkeypatch.setattr(by_rows, "_MANY", many)
    rng = np.random.default_rng(1)
    optimizer, dense = rowwise(ELEMENTWISE[name]()), ELEMENTWISE[name]()
    table = jnp.asarray(rng.normal(size=(9, 3)), jnp.float32)
    state = optimizer.init(table)
    update = jax.jit(optimizer.update)
    # One step on all rows, so that moments are not zero.
    all_rows = jnp.arange(9, dtype=jnp.int32)
    table, state, *_ = update(jnp.asarray(rng.normal(size=(9, 3)), jnp.float32), state, table, all_rows)
    ids = jnp.array([1, 4, 8, 12, 13], jnp.int32)
    touched, untouched = np.array([1, 4, 8]), np.array([0, 2, 3, 5, 6, 7])
    # Rubbish in the gradient of fillers is dropped.
    grads = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32).at[3:].set(1e9)
    done = update(grads, state, table, ids)
    np.testing.assert_array_equal(np.asarray(done.table)[untouched], np.asarray(table)[untouched])
    per_row = lambda leaf: leaf.ndim > 0 and leaf.shape[0] == 9  # noqa: E731
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(done.state), strict=True):
        if per_row(old):
            np.testing.assert_array_equal(np.asarray(new)[untouched], np.asarray(old)[untouched])
    alone_state = jax.tree.map(lambda leaf: leaf[touched] if per_row(leaf) else leaf, state)
    updates, alone_state = dense.update(grads[:3], alone_state, table[touched])
    wanted = optax.apply_updates(table[touched], updates)
    np.testing.assert_allclose(np.asarray(done.table)[touched], wanted, rtol=2e-6, atol=1e-7)
    np.testing.assert_array_equal(done.rows[:3], np.asarray(done.table)[touched])
    for got, want in zip(jax.tree.leaves(done.state), jax.tree.leaves(alone_state), strict=True):
        np.testing.assert_allclose(got[touched] if per_row(got) else got, want, rtol=2e-6, atol=1e-7)


def test_more_rows_than_a_chunk() -> None:
    """1500 used rows of 2600 asked for, at the real chunk size: eight chunks, five of them used."""
    rng = np.random.default_rng(2)
    ids = unique_rows(jnp.asarray(rng.permutation(4000)[np.arange(2600) % 1500], jnp.int32), 4000).ids
    grads = jnp.asarray(rng.normal(size=(2600, 2)), jnp.float32)
    table = jnp.asarray(rng.normal(size=(4000, 2)), jnp.float32)
    optimizer = rowwise(optax.adam(0.1))
    done = jax.jit(optimizer.update)(grads, optimizer.init(table), table, ids)
    used = np.asarray(ids[:1500])
    dense = np.zeros((4000, 2), np.float32)
    dense[used] = grads[:1500]
    updates, _ = optax.adam(0.1).update(jnp.asarray(dense), optax.adam(0.1).init(table))
    np.testing.assert_allclose(done.table, optax.apply_updates(table, updates), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(done.rows[:1500], np.asarray(done.table)[used])
    assert done.rows.shape == (2600, 2)
    assert done.state[0].count == 1


def test_a_step_that_uses_no_row_advances_the_shared_state_alone() -> None:
    optimizer = rowwise(optax.adam(0.1))
    table = jnp.ones((4, 2))
    done = optimizer.update(jnp.ones((3, 2)), optimizer.init(table), table, jnp.array([4, 5, 6]))
    np.testing.assert_array_equal(done.table, table)
    assert done.state[0].count == 1
    assert np.all(np.asarray(done.state[0].mu) == 0)


def test_bfloat16_rows_are_computed_with_in_float32() -> None:
    """State and update are those of the float32 table, and the new rows those, rounded."""
    rng = np.random.default_rng(3)
    narrow = jnp.asarray(rng.normal(size=(4, 2)), jnp.bfloat16)
    table, wide = narrow, narrow.astype(jnp.float32)
    optimizer = rowwise(optax.adam(0.1))
    state, wide_state = optimizer.init(table), optimizer.init(wide)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, wide_state)
    ids = jnp.array([0, 2])
    grads = jnp.asarray(rng.normal(size=(2, 2)), jnp.float32)
    done, wanted = optimizer.update(grads, state, table, ids), optimizer.update(grads, wide_state, wide, ids)
    assert done.table.dtype == done.rows.dtype == jnp.bfloat16
    chex.assert_trees_all_equal(done.state, wanted.state)
    np.testing.assert_array_equal(done.table, wanted.table.astype(jnp.bfloat16))
    np.testing.assert_array_equal(np.asarray(done.table)[[1, 3]], np.asarray(narrow)[[1, 3]])


@pytest.mark.parametrize("shape", [(9, 3), (9,)])
def test_stochastic_rounding_of_rows(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Untouched rows stay, touched ones become a neighbour of the exact result.

    It is the same one in chunks, in a part of the table and among all rows.
    """
    rng = np.random.default_rng(4)
    optimizer = rowwise(optax.sgd(1e-3), rounding="stochastic")
    table = jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
    state, key = optimizer.init(table), jax.random.key(0)
    ids, touched = jnp.array([1, 4, 6, 8, 12, 13], jnp.int32), np.array([1, 4, 6, 8])
    grads = jnp.asarray(rng.normal(size=(6, *shape[1:])), jnp.float32)
    done = optimizer.update(grads, state, table, ids, key)
    untouched = np.setdiff1d(np.arange(9), touched)
    np.testing.assert_array_equal(np.asarray(done.table)[untouched], np.asarray(table)[untouched])
    exact = np.asarray(table, np.float32)[touched] - 1e-3 * np.asarray(grads)[:4]
    got = np.asarray(done.table, np.float32)[touched]
    assert np.all(np.abs(got - exact) < 2.0**-7 * np.abs(exact))
    dense = jnp.zeros(shape).at[touched].set(grads[:4])
    everything, _ = optimizer.update_all(dense, state, table, key)
    np.testing.assert_array_equal(np.asarray(everything)[touched], np.asarray(done.table)[touched])
    part = optimizer.update(grads[1:4], optimizer.init(table[3:]), table[3:], ids[1:4] - 3, key, 3)
    np.testing.assert_array_equal(part.table, done.table[3:])
    monkeypatch.setattr(by_rows, "_CHUNK", 2)
    for many in (0, 2):  # in chunks, in one pass
        monkeypatch.setattr(by_rows, "_MANY", many)
        np.testing.assert_array_equal(optimizer.update(grads, state, table, ids, key).table, done.table)
    with pytest.raises(ValueError, match="expected a key"):
        optimizer.update(grads, state, table, ids)


def test_float32_tables_are_not_rounded() -> None:
    table, ids, grads = jnp.ones((4, 2)), jnp.array([1]), jnp.full((1, 2), 1e-4)
    done = rowwise(optax.sgd(1e-1), rounding="stochastic").update(grads, (optax.EmptyState(),) * 2, table, ids)
    wanted = rowwise(optax.sgd(1e-1)).update(grads, (optax.EmptyState(),) * 2, table, ids)
    np.testing.assert_array_equal(done.table, wanted.table)
    with pytest.raises(Exception, match="rounding"):
        rowwise(optax.sgd(0.1), rounding="down")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_rows_is_refused_at_construction(name: str) -> None:
    with pytest.raises(ValueError, match=r"rowwise: .*Use adam, adagrad, sgd and the like"):
        rowwise(REFUSED[name]())


def test_optimizers_are_made_where_jit_is_disabled() -> None:
    with jax.disable_jit():
        rowwise(optax.sgd(0.1))


def test_what_collects_over_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="collects gradients over several steps"):
        rowwise(optax.MultiSteps(optax.adam(0.1), 4).gradient_transformation())
    with pytest.raises(ValueError, match="collects gradients over several steps"):
        rowwise(optax.chain(optax.apply_every(4), optax.sgd(0.1)))


def test_a_line_search_is_refused() -> None:
    with pytest.raises(ValueError, match="needs more than gradients"):
        rowwise(optax.chain(optax.sgd(0.1), optax.scale_by_backtracking_linesearch(5)))


def compiled_update(name: str, num_rows: int, asked: int = 3000, dtype: str = "float32") -> jax.stages.Compiled:
    optimizer = rowwise(ELEMENTWISE[name](), rounding="stochastic")
    table = jax.ShapeDtypeStruct((num_rows, 8), dtype)
    state = jax.eval_shape(optimizer.init, table)
    grads, ids = jax.ShapeDtypeStruct((asked, 8), jnp.float32), jax.ShapeDtypeStruct((asked,), jnp.int32)

    def update(table: jax.Array, state: optax.OptState, grads: jax.Array, ids: jax.Array) -> by_rows.RowUpdate:
        return optimizer.update(grads, state, table, ids, jax.random.key(0))

    return jax.jit(update, donate_argnums=(0, 1)).lower(table, state, grads, ids).compile()


NARROW_ON_CPU = pytest.mark.xfail(
    jax.default_backend() == "cpu" and jax.__version_info__ < (0, 11),
    reason="XLA on CPU converted a bfloat16 array to float32 to scatter into it, and back",
    strict=True,
)


@pytest.mark.parametrize(
    ("name", "asked", "dtype"),
    [
        *itertools.product(["sgd", "sgd momentum", "adam", "adagrad"], [500, 3000], ["float32"]),
        *[pytest.param("adam", asked, "bfloat16", marks=NARROW_ON_CPU) for asked in (500, 3000)],
    ],
)
def test_cost_does_not_grow_with_the_table(name: str, asked: int, dtype: str) -> None:
    """Donated, in place: equal scratch at ten times the rows, and no copy as large as the table."""
    small, large = (compiled_update(name, num_rows, asked, dtype) for num_rows in (10_000, 100_000))
    assert scratch_of(small) == scratch_of(large)
    assert not table_copies(large)


def test_a_dense_step_would_be_seen() -> None:
    """The planted fault: gradients scattered into a table of their own and a dense optimizer step."""
    adam = optax.adam(0.1)

    def update(grads: jax.Array, state: optax.OptState, table: jax.Array, ids: jax.Array) -> tuple:
        dense = jnp.zeros_like(table).at[ids].add(grads)
        updates, state = adam.update(dense, state)
        return optax.apply_updates(table, updates), state

    def scratch(num_rows: int) -> int:
        table = jax.ShapeDtypeStruct((num_rows, 8), jnp.float32)
        state = jax.eval_shape(adam.init, table)
        grads, ids = jax.ShapeDtypeStruct((500, 8), jnp.float32), jax.ShapeDtypeStruct((500,), jnp.int32)
        lowered = jax.jit(update, donate_argnums=(1, 2)).lower(grads, state, table, ids)
        return scratch_of(lowered.compile())

    assert scratch(100_000) > scratch(10_000)


def test_a_copied_table_would_be_seen() -> None:
    """The planted fault: the old table is read after the write, so that XLA keeps a copy."""

    def update(table: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        return scatter_rows(table, ids, jnp.ones((500, 8))), table[ids[::-1] // 2]

    table, ids = jax.ShapeDtypeStruct((100_000, 8), jnp.float32), jax.ShapeDtypeStruct((500,), jnp.int32)
    not_donated = jax.jit(update).lower(table, ids).compile()
    assert table_copies(not_donated)


def scratch_of(compiled: jax.stages.Compiled) -> int:
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def table_copies(compiled: jax.stages.Compiled) -> list[str]:
    hlo = compiled.as_text()
    assert hlo is not None
    return [
        line for line in hlo.splitlines() if re.search(r"= b?f(32|16)\[100000,8\]\S* (copy|convert)(-start)?\(", line)
    ]
