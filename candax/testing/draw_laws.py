"""The laws of what samplers draw and state, now and after updates and refreshes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from candax.testing.bench import DRAWS, Bench
from candax.testing.broken import LawBroken
from candax.testing.problems import NUM_LABELS

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


def check_padded(bench: Bench) -> None:
    """Law 2 for a batch with padding: an example without labels, whose embedding is 0."""
    labels, embeddings = bench.query.labels.at[-1].set(-1), bench.query.embeddings.at[-1].set(0.0)
    padded = bench.at_query(dataclasses.replace(bench.query, labels=labels, embeddings=embeddings))
    # A support that follows labels or embeddings is that of this query.
    padded.resupport()
    try:
        check_ids(padded)
        check_agreement(padded)
    except LawBroken as fault:
        raise LawBroken(f"where an example is padding, {fault}") from None


def check_few_classes(bench: Bench) -> None:
    """Law 2 with fewer classes than samples: ids, counts, and as many distinct classes as there are."""
    small = bench.on(bench.classes_of(min(4, bench.case.num_valid)))
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
    """Law 6: ids, counts and the one law hold after an update and a refresh; a refresh learns what init would.

    Once more without padding rows: what an update writes to the last row is of no consequence where that is padding.
    """
    _check_later(bench)
    if bench.case.num_valid < bench.case.num_classes:
        try:
            _check_later(bench.on(bench.classes_of(bench.case.num_classes)))
        except LawBroken as fault:
            raise LawBroken(f"without padding rows, {fault}") from None


def _check_later(bench: Bench) -> None:
    updated, refreshed = bench.updated(), bench.refreshed()
    _check_after("an update", updated)
    _check_after("a refresh on other classes", refreshed)
    if not difference(bench.state, updated.state):
        _check_learned(bench, refreshed)
    # Labels of an example are distinct.
    _check_after("a refresh on fewer classes", bench.refreshed(max(NUM_LABELS, int(bench.classes.num_valid) - 2)))


def _check_after(what: str, later: Bench) -> None:
    try:
        check_ids(later)
        check_agreement(later)
        _check_mean_weights(later)
    except LawBroken as fault:
        raise LawBroken(f"after {what}, {fault}") from None


def _check_learned(bench: Bench, refreshed: Bench) -> None:
    """A refresh states what init states, each of its own draw with the same key."""
    facts = bench.sampler.facts
    anew, other = (bench.at(refreshed.classes, bench.init(jax.random.key(seed), refreshed.classes)) for seed in (2, 3))
    stated, wanted, again = (later.stated(later.one(0))[1] for later in (refreshed, anew, other))
    # Two indexes that find the same once need not find it always.
    by_index = difference(anew.state, other.state) and (not facts.draw_independent or facts.counts_labels)
    if by_index or np.any(wanted != again):
        return  # What is stated follows the key.
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
    stated = np.mean([np.exp(bench.stated(bench.one(seed))[1].astype(np.float64)) for seed in range(3)], axis=0)
    stated = np.where(bench.certain, stated, 0)
    # The spread of few draws of a rare class says little: 1 / count bounds the variance of a weight if it is right.
    inverse = np.divide(1.0, stated, out=np.zeros_like(stated), where=stated > 0)
    over_groups = _Weights(
        ROUNDS * DRAWS * stated.sum(axis=0, keepdims=True) >= _ENOUGH_DRAWS,
        inverse.sum(axis=0, keepdims=True) / np.maximum(groups, 1) ** 2,
    )
    # Errors of two groups may cancel in the mean.
    of_group = _Weights(ROUNDS * DRAWS * stated >= _ENOUGH_DRAWS, inverse)
    for seed in range(ROUNDS):
        found = bench.many(seed)
        ids, mask, counts = (np.asarray(part) for part in (found.ids, found.mask, found.log_expected_count))
        weights = np.exp(np.where(mask, -counts.astype(np.float64), -np.inf))
        weights *= bench.certain[np.arange(bench.groups)[:, None], ids]
        place = np.arange(DRAWS * bench.groups).reshape(DRAWS, bench.groups, 1) * number + ids
        totals = np.bincount(place.ravel(), weights.ravel(), DRAWS * bench.groups * number)
        totals = totals.reshape(DRAWS, bench.groups, number)
        over_groups.add(totals.sum(axis=1, keepdims=True) / np.maximum(groups, 1))
        if bench.groups > 1:
            of_group.add(totals)
    over_groups.check(["the mean over its groups"] if bench.groups > 1 else [""])
    if bench.groups > 1:
        of_group.check([f"group {group}" for group in range(bench.groups)])


class _Weights:
    """Sums of the weights [draws, groups, num_classes] of rounds of draws."""

    def __init__(self, seen: np.ndarray, variance: np.ndarray) -> None:
        self.seen, self.variance = seen, variance
        self.total, self.square = np.zeros(seen.shape), np.zeros(seen.shape)
        self.together: list[np.ndarray] = []

    def add(self, weights: np.ndarray) -> None:
        self.total += weights.sum(axis=0)
        self.square += (weights**2).sum(axis=0)
        # Together they vary less than each alone.
        self.together.append(np.where(self.seen, weights, 0).sum(axis=2) / np.maximum(self.seen.sum(axis=1), 1))

    def check(self, names: list[str]) -> None:
        together = np.concatenate(self.together)
        draws = len(together)
        mean = self.total / draws
        variance = np.maximum(self.square / draws - mean**2, self.variance)
        off = np.where(self.seen, np.abs(mean - 1) - 6 * np.sqrt(variance / draws), -1.0)
        for group, name in enumerate(names):
            seen, where = np.sum(self.seen[group]), f" ({name})" if name else ""
            if np.any(off[group] > 0):
                worst = int(np.argmax(off[group]))
                raise LawBroken(
                    f"biased at {np.sum(off[group] > 0)} of {seen} classes, most at class {worst}: mean "
                    f"{mean[group, worst]:.4f} where 1 is expected, after {draws:,} draws{where}"
                )
            of_all = together[:, group]
            if seen and abs(of_all.mean() - 1) > 6 * of_all.std() / np.sqrt(draws) + 1e-4:
                raise LawBroken(
                    f"biased: the mean over {seen} classes is {of_all.mean():.4f} where 1 is expected, after "
                    f"{draws:,} draws{where}"
                )


def check_undrawn(bench: Bench) -> None:
    """Law 1: where counts follow the draw, those of ids that were not drawn are of the right size too.

    A coarse look: what the counts of a class are on average, drawn or not, and how often it is drawn, must be within a
    factor of 2. Of a fixed index they need not be, nor where counts are approximations.
    """
    facts = bench.sampler.facts
    if facts.draw_independent or not facts.exact or facts.law_over != "draw" or not bench.case.random:
        return
    number = bench.classes.num_classes
    drawn, stated = np.zeros((bench.groups, number)), np.zeros((bench.groups, number))
    for seed in range(ROUNDS):
        found = bench.many(seed)
        ids, mask = np.asarray(found.ids), np.asarray(found.mask)
        place = np.broadcast_to(np.arange(bench.groups)[:, None] * number, ids.shape) + ids
        drawn += np.bincount(place[mask], minlength=bench.groups * number).reshape(drawn.shape)
        stated += DRAWS * bench.mean_stated(found)
    wrong = (drawn > _ENOUGH_DRAWS) & ~((drawn / 2 <= stated) & (stated <= 2 * drawn))
    if np.any(wrong):
        group, class_id = np.argwhere(wrong)[0]
        draws = ROUNDS * DRAWS
        raise LawBroken(
            f"class {class_id} is drawn {drawn[group, class_id] / draws:.4g} times per draw, and its count as stated, "
            f"drawn or not, is {stated[group, class_id] / draws:.4g} on average over {draws:,} draws (group {group})"
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
