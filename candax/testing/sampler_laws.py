"""The laws of samplers, as functions of a ``Bench``; ``SAMPLER_LAWS`` is the table of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from candax.testing.bench import DRAWS, Bench
from candax.testing.broken import Law, LawBroken
from candax.testing.problems import make_classes, make_query
from candax.testing.program_laws import check_closure, check_cost
from candax.testing.statistics import check_mean, name_of_class


def check_ids(bench: Bench) -> None:
    """Law 2: ids are in range, unmasked ones valid and in the support; counts finite; no class twice if so promised."""
    ids, mask = np.asarray(bench.drawn.ids), np.asarray(bench.drawn.mask)
    counts = np.asarray(bench.drawn.log_expected_count)
    num_valid = int(bench.classes.num_valid)
    _none(ids, (ids < 0) | (ids >= bench.classes.num_classes), "out of range")
    _none(ids, mask & (ids >= num_valid), f"drawn though only ids below {num_valid} are valid: the rest is padding")
    of_group = np.broadcast_to(np.arange(bench.groups)[:, None], ids.shape)
    _none(ids, mask & ~bench.support[of_group, ids], "drawn outside the support")
    _none(ids, mask & ~np.isfinite(counts), "drawn with a count that is not finite")
    _none(ids, ~np.isfinite(counts), "in a masked slot with a count that is not finite")
    real = np.where(mask, ids, -1 - np.arange(ids.shape[-1]))
    in_order = np.sort(real, axis=-1)
    repeats = np.diff(in_order, axis=-1) == 0
    if bench.sampler.facts.with_replacement and not np.any(repeats):
        raise LawBroken(f"facts.with_replacement is True, but no class came twice in one set in any of {DRAWS} draws")
    if not bench.sampler.facts.with_replacement:
        _none(in_order[..., 1:], repeats, "drawn twice in one set though facts.with_replacement is False")


def _none(ids: np.ndarray, wrong: np.ndarray, what: str) -> None:
    """No slot of the draws [draws, groups, slots] is wrong."""
    if np.any(wrong):
        draw, group, slot = np.argwhere(wrong)[0]
        raise LawBroken(
            f"class {ids[draw, group, slot]} is {what} (group {group}, slot {slot}); this holds for {np.sum(wrong):,} "
            f"of {wrong.size:,} slots in {len(ids)} draws"
        )


def check_agreement(bench: Bench) -> None:
    """Law 1: counts of returned ids and ``log_expected_count`` of the same ids are the same numbers."""
    for seed in range(3):
        found = bench.one(seed)
        again, stated = bench.stated(found)
        ids, mask, counts = (np.asarray(part) for part in (found.ids, found.mask, found.log_expected_count))
        differ = mask & (again != counts)
        if np.any(differ):
            group, slot = np.argwhere(differ)[0]
            raise LawBroken(
                f"class {ids[group, slot]} was drawn with log expected count {counts[group, slot]:.8g}, but "
                f"log_expected_count says {again[group, slot]:.8g} of it (difference "
                f"{again[group, slot] - counts[group, slot]:.3g}; the two must be equal to the last bit)"
            )
        _no_class(bench.counted & ~np.isfinite(stated), stated, "is in the support and has log expected count")
        _no_class(
            ~bench.counted & (stated != -np.inf), stated, "is outside the support, where -inf is expected, and has"
        )


def _no_class(wrong: np.ndarray, stated: np.ndarray, what: str) -> None:
    if np.any(wrong):
        group, class_id = np.argwhere(wrong)[0]
        raise LawBroken(f"class {class_id} {what} {stated[group, class_id]:.6g} (group {group})")


def check_facts(bench: Bench) -> None:
    """``facts`` say what is true."""
    facts = bench.sampler.facts
    stated = [bench.stated(bench.one(seed))[1] for seed in range(3)]
    if facts.covers_all:
        valid = np.arange(bench.classes.num_classes) < int(bench.classes.num_valid)
        missing = valid & ~bench.support
        if np.any(missing):
            raise LawBroken(f"facts.covers_all is True, but class {np.argwhere(missing)[0][1]} is outside the support")
    follows = np.logical_or(stated[0] != stated[1], stated[0] != stated[2])
    if facts.draw_independent and np.any(follows):
        group, class_id = np.argwhere(follows)[0]
        values = ", ".join(f"{counts[group, class_id]:.6g}" for counts in stated)
        raise LawBroken(
            f"facts.draw_independent is True, but the log expected count of class {class_id} follows the draw: {values}"
        )
    if not facts.draw_independent and bench.case.random and not bench.case.cautious and not np.any(follows):
        raise LawBroken(
            "facts.draw_independent is False, but counts are the same after three draws: say True, or check it with "
            "cautious=True"
        )


def check_state(bench: Bench) -> None:
    """Law 6: tree structure, shapes and dtypes survive update and refresh."""
    sampler, classes = bench.sampler, bench.classes
    row_ids = jnp.array([0, 2, classes.num_classes, classes.num_classes + 1], jnp.int32)
    rows = jnp.ones((4, classes.vectors.shape[1]), classes.vectors.dtype)
    updated = bench.update(bench.state, jax.random.key(1), bench.query, row_ids, rows)
    refreshed = bench.refresh(bench.state, jax.random.key(2), classes)
    for function, new in (("update", updated), ("refresh", refreshed)):
        before: Any = jax.tree_util.tree_flatten_with_path(bench.state)
        after: Any = jax.tree_util.tree_flatten_with_path(new)
        if before[1] != after[1]:
            raise LawBroken(f"{function} changes the structure of the state from {before[1]} to {after[1]}")
        for (path, old), (_, leaf) in zip(before[0], after[0], strict=True):
            described = [f"{jnp.result_type(x)}{list(jnp.shape(x))}" for x in (old, leaf)]
            if described[0] != described[1]:
                where = jax.tree_util.keystr(path) or "the state"
                raise LawBroken(f"{function} changes {where} from {described[0]} to {described[1]}")
    due: Any = sampler.schedule(0)
    if not isinstance(due, bool):
        raise LawBroken(f"schedule(0) returned {type(due).__name__} {due!r} where a bool of Python is expected")


def check_randomness(bench: Bench) -> None:
    """Law 7: the same key gives the same result; other keys and other groups give others."""
    _equal(bench.drawn, bench.many(13), "sample gave two results for the same key")
    again = bench.init(jax.random.key(12), bench.classes)
    _equal(bench.state, again, "init gave two results for the same key")
    if not bench.case.random:
        return
    ids = np.asarray(bench.drawn.ids)
    if not np.any(ids[:1] != ids[1:]):
        raise LawBroken(
            f"the key is ignored: {DRAWS} keys gave the same ids; if no draw is random here, check it with random=False"
        )
    for group in range(1, bench.groups):
        if not np.any(ids[:, 0] != ids[:, group]):
            raise LawBroken(f"group {group} always draws what group 0 draws: split the key once more per group")


def _equal(first: Any, second: Any, what: str) -> None:
    def bits(leaf: Any) -> np.ndarray:
        is_key = jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    leaves = zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True)
    for (path, one), other in leaves:
        one, other = bits(one), bits(other)
        if not np.array_equal(one, other, equal_nan=np.issubdtype(one.dtype, np.floating)):
            raise LawBroken(f"{what}: {jax.tree_util.keystr(path) or 'it'} differs")


def check_retrace(bench: Bench) -> None:
    """Law 6: other keys, embeddings, labels and a refreshed state do not trace again."""
    _ = bench.drawn
    state = bench.state
    bench.complete = True
    try:
        for seed in range(2):
            state = bench.refresh(state, jax.random.key(seed), bench.classes)
            bench._many(state, jax.random.key(seed), make_query(jax.random.key(seed), bench.classes))
    finally:
        bench.complete = False


def check_few_classes(bench: Bench) -> None:
    """Law 2 with fewer classes than samples: ids, counts, and as many distinct classes as there are."""
    small = bench.on(make_classes(min(4, bench.case.num_valid), bench.case.num_classes))
    check_ids(small)
    check_agreement(small)
    if bench.case.fills_slots and not small.sampler.facts.with_replacement:
        number = np.asarray(small.drawn.mask).sum(axis=-1)
        wanted = np.minimum(small.support.sum(axis=1), small.drawn.mask.shape[-1])
        if np.any(number != wanted):
            draw, group = np.argwhere(number != wanted)[0]
            raise LawBroken(
                f"{number[draw, group]} classes are drawn in group {group} where {wanted[group]} can be and there are "
                f"{small.drawn.mask.shape[-1]} slots"
            )


def check_one_law(bench: Bench) -> None:
    """Law 1: E[sum_s mask_s 1{ids_s = c} exp(-log_expected_count_s)] is 1 in the support and 0 outside.

    Unless ``each_group`` is True, the average over the groups that can draw a class is tested: that takes fewer draws.
    """
    sampler, classes = bench.sampler, bench.classes
    over, pooled = sampler.facts.law_over, not bench.case.each_group
    every_class = jnp.arange(classes.num_classes)

    def weights(key: jax.Array) -> jax.Array:
        key_query, key_init, key_sample = jax.random.split(key, 3)
        query = make_query(key_query, classes) if over == "batch" else bench.query
        state = sampler.init(key_init, classes) if over != "draw" else bench.state
        candidates = sampler.sample(state, key_sample, query)
        weight = jnp.where(candidates.mask, jnp.exp(-candidates.log_expected_count), 0.0)
        of_class = jnp.sum(jnp.where(candidates.ids[..., None] == every_class, weight[..., None], 0.0), axis=1)
        return jnp.sum(of_class, axis=0) / np.maximum(bench.support.sum(axis=0), 1) if pooled else of_class

    truth = np.asarray(bench.support.any(axis=0) if pooled else bench.support)
    name_of = name_of_class(groups=not pooled)
    large = over != "draw"
    check_mean(weights, truth, delta=bench.case.delta, seed=14, clock=bench.clock, large=large, name_of=name_of)


_COUNTS = "sample and log_expected_count: both must report what is drawn, not what was meant"

# The cheap laws come first: the faults that they find would make the others fail in stranger ways.
SAMPLER_LAWS: dict[str, Law] = {
    "ids": Law(
        2, "ids are int32 ids of valid classes in the support, with finite counts", "what sample returns", check_ids
    ),
    "agreement": Law(
        1, "the counts of returned ids and log_expected_count of the same ids agree exactly", _COUNTS, check_agreement
    ),
    "facts": Law(0, "facts say what is true", "the sampler's Facts", check_facts),
    "state": Law(
        6, "a state keeps structure, shapes and dtypes through update and refresh", "update and refresh", check_state
    ),
    "randomness": Law(
        7,
        "the same key gives the same result, other keys and groups others",
        "what is done with the key",
        check_randomness,
    ),
    "retrace": Law(
        6, "a second step is not compiled again", "static fields and Python numbers in the state", check_retrace
    ),
    "closure": Law(
        0, "functions hold static hyperparameters, never arrays", "move these arrays into the state", check_closure
    ),
    "few_classes": Law(
        2, "with fewer classes than samples the laws of ids and counts hold too", "masks and padding", check_few_classes
    ),
    "cost": Law(
        5,
        "the scratch of a step does not grow with num_classes",
        "operations on arrays of the size of the table, and gathers from a donated array after it was written",
        check_cost,
    ),
    "one_law": Law(
        1,
        "every class c in the support has E[sum of mask * 1{ids = c} * exp(-log_expected_count)] = 1",
        _COUNTS,
        check_one_law,
    ),
}
