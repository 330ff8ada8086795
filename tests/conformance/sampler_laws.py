"""The laws of samplers, as assertions; ``test_samplers`` runs them on all samplers, ``test_mutants`` on faulty ones."""

import functools
import types
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

import candax as cx
from candax.base import Candidates, Classes, Query, Sampler
from tests.conformance.statistics import check_mean
from tests.conformance.tables import BATCH_SIZE, SamplerCase, make_classes, make_query


class Bench:
    """A sampler on the bench: built, initialised, with jitted functions and a query."""

    def __init__(self, case: SamplerCase, num_groups: int | None, classes: Classes) -> None:
        self.case, self.classes = case, classes
        self.groups = BATCH_SIZE if num_groups is None else num_groups
        self.sampler: Sampler = case.factory(num_groups)
        self.query: Query = make_query(jax.random.key(11), classes)
        self.state = self.sampler.init(jax.random.key(12), classes)
        self.sample = jax.jit(self.sampler.sample)
        self.log_expected_count = jax.jit(self.sampler.log_expected_count)
        self.support = case.support(classes, self.query, self.groups)
        also = case.also_counted
        self.counted = self.support if also is None else self.support | also(classes, self.query, self.groups)

    def draw(self, seed: int) -> Candidates:
        return self.sample(self.state, jax.random.key(seed), self.query)

    def draw_many(self, number: int) -> Candidates:
        """Candidates with a leading axis of draws."""
        keys = jax.random.split(jax.random.key(13), number)
        return jax.jit(jax.vmap(self.sampler.sample, in_axes=(None, 0, None)))(self.state, keys, self.query)

    def counts_of_all(self, candidates: Candidates) -> np.ndarray:
        """Log expected counts [groups, num_classes] of every class."""
        ids = jnp.broadcast_to(jnp.arange(self.classes.num_classes), (self.groups, self.classes.num_classes))
        return np.asarray(self.log_expected_count(self.state, candidates, ids.astype(jnp.int32), self.query))


def check_one_law(bench: Bench, *, pooled: bool = True) -> None:
    """Law 1: E[sum_s mask_s 1{ids_s = c} exp(-log_expected_count_s)] is 1 in the support and 0 outside.

    Pooled: the average over the groups that can draw a class, which takes fewer draws.
    """
    sampler, classes = bench.sampler, bench.classes
    over = sampler.facts.law_over
    every_class = jnp.arange(classes.num_classes)

    def weights(key: jax.Array) -> jax.Array:
        key_query, key_init, key_sample = jax.random.split(key, 3)
        query = make_query(key_query, classes) if over == "batch" else bench.query
        state = sampler.init(key_init, classes) if over != "draw" else bench.state
        candidates = sampler.sample(state, key_sample, query)
        weight = jnp.where(candidates.mask, jnp.exp(-candidates.log_expected_count), 0.0)
        of_class = jnp.sum(jnp.where(candidates.ids[..., None] == every_class, weight[..., None], 0.0), axis=1)
        return jnp.sum(of_class, axis=0) / np.maximum(bench.support.sum(axis=0), 1) if pooled else of_class

    truth = bench.support.any(axis=0) if pooled else bench.support
    check_mean(weights, np.asarray(truth), delta=bench.case.delta, seed=14)


def check_ids(bench: Bench, draws: int = 500) -> None:
    """Law 2: int32 ids of valid classes, real ones inside the support; finite counts; no class twice if so promised."""
    candidates = bench.draw_many(draws)
    ids, mask = np.asarray(candidates.ids), np.asarray(candidates.mask)
    counts = np.asarray(candidates.log_expected_count)
    assert candidates.ids.dtype == jnp.int32
    assert candidates.log_expected_count.dtype == jnp.float32
    assert candidates.mask.dtype == jnp.bool_
    assert ids.shape == mask.shape == counts.shape
    assert ids.shape[:2] == (draws, bench.groups)
    assert np.all((ids >= 0) & (ids < bench.classes.num_classes)), "ids out of range"
    assert np.all(ids[mask] < int(bench.classes.num_valid)), "padding rows were drawn"
    of_group = np.broadcast_to(np.arange(bench.groups)[:, None], ids.shape)
    assert np.all(bench.support[of_group[mask], ids[mask]]), "classes outside the support were drawn"
    assert np.all(np.isfinite(counts)), "counts must be finite, on masked slots too"
    real = np.where(mask, ids, -1 - np.arange(ids.shape[-1]))
    repeats = np.any(np.diff(np.sort(real, axis=-1), axis=-1) == 0)
    if bench.sampler.facts.with_replacement:
        assert repeats, "said to draw with replacement, but no class ever came twice"
    else:
        assert not repeats, "a class came twice in one set"


def check_counts_agree(bench: Bench) -> None:
    """Law 1: counts of returned ids and ``log_expected_count`` of the same ids are the same numbers."""
    for seed in range(3):
        candidates = bench.draw(seed)
        again = bench.log_expected_count(bench.state, candidates, candidates.ids, bench.query)
        assert again.shape == candidates.ids.shape
        assert again.dtype == jnp.float32
        mask = np.asarray(candidates.mask)
        np.testing.assert_array_equal(np.asarray(again)[mask], np.asarray(candidates.log_expected_count)[mask])
        stated = bench.counts_of_all(candidates)
        assert np.all(np.isfinite(stated[bench.counted])), "a class of the support has no finite count"
        assert np.all(stated[~bench.counted] == -np.inf), "an impossible class must have log expected count -inf"


def check_facts(bench: Bench) -> None:
    """``facts`` say what is true."""
    facts = bench.sampler.facts
    stated = [bench.counts_of_all(bench.draw(seed)) for seed in range(3)]
    if facts.covers_all:
        assert np.all(bench.support == (np.arange(bench.classes.num_classes) < int(bench.classes.num_valid)))
    if facts.draw_independent:
        np.testing.assert_array_equal(stated[0], stated[1])
        np.testing.assert_array_equal(stated[0], stated[2])
    elif bench.case.random and not bench.case.cautious:
        assert np.any(stated[0] != stated[1]), "counts do not follow the draw: say draw_independent=True"


def check_state_keeps_structure(bench: Bench) -> None:
    """Law 6: tree structure, shapes and dtypes survive update and refresh."""
    sampler, classes = bench.sampler, bench.classes
    row_ids = jnp.array([0, 2, classes.num_classes, classes.num_classes + 1], jnp.int32)
    rows = jnp.ones((4, classes.vectors.shape[1]), classes.vectors.dtype)
    updated = sampler.update(bench.state, jax.random.key(1), bench.query, row_ids, rows)
    refreshed = sampler.refresh(bench.state, jax.random.key(2), classes)
    for new in (updated, refreshed):
        chex.assert_trees_all_equal_structs(bench.state, new)
        chex.assert_trees_all_equal_shapes_and_dtypes(bench.state, new)
    if sampler.update is cx.base.no_update:
        assert updated is bench.state
    assert isinstance(sampler.schedule(0), bool)


def check_randomness(bench: Bench) -> None:
    """Law 7: the same key gives the same result; other keys and other groups give others."""
    first, same, other = bench.draw(1), bench.draw(1), bench.draw(2)
    chex.assert_trees_all_equal(first, same)
    again = bench.sampler.init(jax.random.key(12), bench.classes)
    chex.assert_trees_all_equal(bench.state, again)
    if not bench.case.random:
        return
    many = np.asarray(bench.draw_many(20).ids)
    assert np.any(np.asarray(first.ids) != np.asarray(other.ids)) or np.any(many[0] != many[1:]), "the key is ignored"
    for group in range(1, bench.groups):
        assert np.any(many[:, 0] != many[:, group]), f"group {group} always draws what group 0 draws"


def check_no_retrace(bench: Bench) -> None:
    """Law 6: other keys, embeddings and labels do not trace again."""
    chex.clear_trace_counter()
    traced: Callable[..., Any] = chex.assert_max_traces(bench.sampler.sample, n=1)
    sample = jax.jit(traced)
    state = bench.state
    for seed in range(3):
        sample(state, jax.random.key(seed), make_query(jax.random.key(seed), bench.classes))
        state = bench.sampler.refresh(state, jax.random.key(seed), bench.classes)


def check_holds_no_arrays(bench: Bench) -> None:
    """Samplers are closed over static hyperparameters, never over arrays: those would be constants of every step."""
    found = [path for function in bench.sampler[:6] for path in _arrays_held(function, function.__name__, set())]
    assert not found, f"arrays are closed over: {found}"


def _arrays_held(value: Any, path: str, seen: set[int]) -> list[str]:
    if isinstance(value, jax.Array | np.ndarray):
        return [path]
    if id(value) in seen:
        return []
    seen.add(id(value))
    inner: dict[str, Any] = {}
    if isinstance(value, functools.partial):
        inner = {"func": value.func, "args": value.args, "keywords": value.keywords}
    elif isinstance(value, types.FunctionType):
        inner = {"defaults": value.__defaults__, "kwdefaults": value.__kwdefaults__}
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        inner |= {name: cell.cell_contents for name, cell in cells}
    elif hasattr(value, "__wrapped__"):
        inner = {"wrapped": value.__wrapped__}
    elif isinstance(value, dict):
        inner = {str(key): entry for key, entry in value.items()}
    elif isinstance(value, list | tuple):
        inner = {str(i): entry for i, entry in enumerate(value)}
    return [found for name, entry in inner.items() for found in _arrays_held(entry, f"{path}.{name}", seen)]


def check_cost(bench: Bench, num_groups: int | None) -> None:
    """Law 5: the scratch of a draw and of an update is the same at 10^5 and at 10^6 classes."""

    def scratch(num_classes: int) -> int:
        sampler = bench.case.factory(num_groups)
        shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
        arrays = cx.Classes(jnp.zeros((0, 4)), jnp.zeros(0), jnp.zeros(0), jnp.int32(num_classes))
        described = (shape((num_classes, 4)), shape((num_classes,)), shape((num_classes,)), arrays.num_valid)
        classes = jax.tree.unflatten(jax.tree.structure(arrays), described)
        key = jax.eval_shape(jax.random.key, 0)
        query = jax.eval_shape(make_query, key, classes)
        state = jax.eval_shape(sampler.init, key, classes)

        def step(state: Any, key: jax.Array, query: Query) -> Any:
            candidates = sampler.sample(state, key, query)
            counts = sampler.log_expected_count(state, candidates, candidates.ids, query)
            # As in training, where new rows come of what was drawn: an update never goes before its draw.
            rows = jnp.full((8, 4), jnp.sum(counts))
            return candidates, counts, sampler.update(state, key, query, jnp.arange(8, dtype=jnp.int32), rows)

        analysis = jax.jit(step, donate_argnums=0).lower(state, key, query).compile().memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    assert scratch(10**5) == scratch(10**6)


def small_bench(case: SamplerCase, num_groups: int | None) -> Bench:
    """Fewer classes than samples."""
    return Bench(case, num_groups, make_classes(num_valid=4, num_rows=24))
