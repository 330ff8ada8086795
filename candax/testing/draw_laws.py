"""The laws of what samplers draw and state, now and after updates and refreshes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from candax.testing.bench import DRAWS, Bench
from candax.testing.broken import LawBroken
from candax.testing.problems import make_classes

# With fewer expected than this, none may be seen by chance.
_ENOUGH_REPEATS = 20
_ENOUGH_DRAWS = 100
# Calls of ``DRAWS`` draws each.
ROUNDS = 8


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
    if bench.sampler.facts.with_replacement and not np.any(repeats) and _repeats_expected(bench) >= _ENOUGH_REPEATS:
        raise LawBroken(f"facts.with_replacement is True, but no class came twice in one set in any of {DRAWS} draws")
    if not bench.sampler.facts.with_replacement:
        _none(in_order[..., 1:], repeats, "drawn twice in one set though facts.with_replacement is False")


def _repeats_expected(bench: Bench) -> float:
    """How often two slots of one set hold the same class in all draws, by the counts as stated."""
    slots = bench.drawn.mask.shape[-1]
    counts = np.exp(bench.stated(bench.one(0))[1].astype(np.float64))
    return DRAWS * (slots - 1) / (2 * slots) * float(np.sum(counts**2))


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
        _no_class(bench.required & ~np.isfinite(stated), stated, "is in the support and has log expected count")
        _no_class(
            ~bench.counted & (stated != -np.inf), stated, "is outside the support, where -inf is expected, and has"
        )


def _no_class(wrong: np.ndarray, stated: np.ndarray, what: str) -> None:
    if np.any(wrong):
        group, class_id = np.argwhere(wrong)[0]
        raise LawBroken(f"class {class_id} {what} {stated[group, class_id]:.6g} (group {group})")


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


def check_later(bench: Bench) -> None:
    """Law 6: ids, counts and the one law hold after an update and a refresh; a refresh learns what init would."""
    updated, refreshed = bench.updated(), bench.refreshed()
    for when, later in (("after an update", updated), ("after a refresh on other classes", refreshed)):
        try:
            check_ids(later)
            check_agreement(later)
            _check_mean_weights(later)
        except LawBroken as fault:
            raise LawBroken(f"{when}, {fault}") from None
    if not bench.sampler.facts.draw_independent or difference(bench.state, updated.state):
        return
    anew, other = (bench.at(refreshed.classes, bench.init(jax.random.key(seed), refreshed.classes)) for seed in (2, 3))
    found = anew.one(0)
    wanted = anew.stated(found)[1]
    if np.any(wanted != other.stated(found)[1]):
        return  # What is stated follows the key.
    stated = refreshed.stated(found)[1]
    differ = ~np.isclose(stated, wanted, rtol=1e-5, atol=1e-5)
    if np.any(differ):
        group, class_id = np.argwhere(differ)[0]
        raise LawBroken(
            f"after a refresh on other classes, class {class_id} has log expected count {stated[group, class_id]:.6g}; "
            f"after init on these it has {wanted[group, class_id]:.6g} (group {group}), whatever the key"
        )


def _check_mean_weights(bench: Bench) -> None:
    """A look at the one law, in draws of the compiled function: far fewer than its own test takes, for gross faults."""
    if bench.sampler.facts.law_over != "draw" or not bench.sampler.facts.exact:
        return
    number, groups = bench.classes.num_classes, np.sum(bench.certain, axis=0)
    found = [bench.many(seed) for seed in range(ROUNDS)]
    ids, mask, counts = (
        np.concatenate([np.asarray(getattr(draws, name)) for draws in found])
        for name in ("ids", "mask", "log_expected_count")
    )
    weights = np.exp(np.where(mask, -counts.astype(np.float64), -np.inf))
    weights *= bench.certain[np.arange(bench.groups)[:, None], ids]
    draws = len(ids)
    place = np.arange(draws)[:, None, None] * number + ids
    totals = np.bincount(place.ravel(), weights.ravel(), draws * number).reshape(draws, number) / np.maximum(groups, 1)
    mean = totals.mean(axis=0)
    # The spread of few draws of a rare class says little: 1 / count bounds the variance of a weight if it is right.
    stated = np.mean([np.exp(bench.stated(bench.one(seed))[1].astype(np.float64)) for seed in range(3)], axis=0)
    inverse = np.divide(1.0, stated, out=np.zeros_like(stated), where=bench.certain & (stated > 0))
    variance = np.maximum(totals.var(axis=0), inverse.sum(axis=0) / np.maximum(groups, 1) ** 2)
    seen = (draws * np.where(bench.certain, stated, 0).sum(axis=0) >= _ENOUGH_DRAWS) & (groups > 0)
    off = np.where(seen, np.abs(mean - 1) - 6 * np.sqrt(variance / draws), -1.0)
    if np.any(off > 0):
        worst = int(np.argmax(off))
        raise LawBroken(
            f"biased at {np.sum(off > 0)} of {np.sum(seen)} classes, most at class {worst}: mean {mean[worst]:.4f} "
            f"where 1 is expected, after {draws:,} draws"
        )
    if not np.any(seen):
        return
    # Together they vary less than each alone.
    together = totals[:, seen].mean(axis=1)
    if abs(together.mean() - 1) > 6 * together.std() / np.sqrt(draws) + 1e-4:
        raise LawBroken(
            f"biased: the mean over {np.sum(seen)} classes is {together.mean():.4f} where 1 is expected, after "
            f"{draws:,} draws"
        )


def difference(first: Any, second: Any) -> str | None:
    """Where two pytrees of one structure differ in any bit."""

    def bits(leaf: Any) -> np.ndarray:
        is_key = jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    leaves = zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True)
    for (path, one), other in leaves:
        one, other = bits(one), bits(other)
        if not np.array_equal(one, other, equal_nan=np.issubdtype(one.dtype, np.floating)):
            return jax.tree_util.keystr(path) or "it"
    return None
