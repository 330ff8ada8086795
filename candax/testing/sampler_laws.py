"""The laws of samplers, as functions of a ``Bench``; ``SAMPLER_LAWS`` is the table of them."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from candax.testing.bench import DRAWS, Bench
from candax.testing.broken import Law, LawBroken
from candax.testing.draw_laws import (
    check_agreement,
    check_few_classes,
    check_ids,
    check_later,
    check_padded,
    check_undrawn,
    difference,
)
from candax.testing.problems import make_query
from candax.testing.program_laws import check_closure, check_cost, check_share
from candax.testing.statistics import check_mean, name_of_class


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
    if not facts.of_batch and facts.draw_independent and bench.groups == 1:
        batches = (bench, bench.at_query(make_query(jax.random.key(12), bench.classes)))
        one, other = (batch.stated(batch.one(0))[1][0] for batch in batches)
        if np.any(one != other):
            class_id = np.argwhere(one != other)[0][0]
            raise LawBroken(
                f"facts.of_batch is False, but the log expected count of class {class_id} follows the batch: it is "
                f"{one[class_id]:.6g} for one and {other[class_id]:.6g} for another"
            )
    if facts.alike:
        _check_alike(bench)


# Alike slots hold each class equally often; with fewer expected than this, few draws cannot tell.
_ENOUGH_IN_SLOT = 20


def _check_alike(bench: Bench) -> None:
    facts = bench.sampler.facts
    for name in ("with_replacement", "draw_independent"):
        if not getattr(facts, name):
            raise LawBroken(f"facts.alike is True, but facts.{name} is False: alike slots are drawn independently")
    ids = np.where(np.asarray(bench.drawn.mask), np.asarray(bench.drawn.ids), bench.classes.num_classes)
    found = np.sum(ids[..., None] == np.arange(bench.classes.num_classes + 1), axis=0)
    expected = np.broadcast_to(found.mean(axis=1, keepdims=True), found.shape)
    off = np.abs(found - expected) > 6 * np.sqrt(expected * (1 - expected / len(ids)))
    wrong = off & (expected >= _ENOUGH_IN_SLOT)
    if np.any(wrong):
        group, slot, class_id = np.argwhere(wrong)[0]
        what = f"class {class_id}" if class_id < bench.classes.num_classes else "no class"
        raise LawBroken(
            f"facts.alike is True, but slot {slot} holds {what} in {found[group, slot, class_id]} of {len(ids)} draws "
            f"where slots do in {expected[group, slot, class_id]:.1f} on average (group {group})"
        )
    # Each slot may be right by itself and yet follow another one: then they are equal too often, or too seldom.
    slots = ids.shape[2]
    equal = np.sum(ids[..., :, None] == ids[..., None, :], axis=(2, 3)) - slots
    independent = slots * (slots - 1) * np.sum((found.sum(axis=1) / (slots * len(ids))) ** 2, axis=1)
    error = np.maximum(equal.std(axis=0), np.sqrt(independent)) / np.sqrt(len(ids))
    if np.any(np.abs(equal.mean(axis=0) - independent) > 6 * error + 1e-9):
        raise LawBroken(
            f"facts.alike is True, but two slots of a set hold the same class {equal.mean() / 2:.3g} times per draw, "
            f"where {independent.mean() / 2:.3g} times are expected of slots drawn independently"
        )


def check_state(bench: Bench) -> None:
    """Law 6: tree structure, shapes and dtypes survive update and refresh."""
    updated, refreshed = bench.updated().state, bench.refreshed().state
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
    due: Any = bench.sampler.schedule(0)
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
    for group, other in itertools.combinations(range(bench.groups), 2):
        if not np.any(ids[:, group] != ids[:, other]):
            raise LawBroken(f"group {other} always draws what group {group} draws: split the key once more per group")
        if bench.sampler.facts.alike:
            _check_independent(bench, group, other)


def _check_independent(bench: Bench, group: int, other: int) -> None:
    """Alike slots of two groups hold the same class as often as those of independent draws do.

    Where slots are not alike, groups may share a part of what they draw, such as a tail or a proposal.
    """
    number = bench.classes.num_classes
    ids, mask = (np.asarray(part)[:, [group, other]] for part in (bench.drawn.ids, bench.drawn.mask))
    ids = np.where(mask, ids, number)
    equal = np.sum((ids[:, 0] == ids[:, 1]) & mask.all(axis=1), axis=1)
    shares = np.mean(ids[..., None] == np.arange(number), axis=0)
    independent = float(np.sum(shares[0] * shares[1]))
    error = max(equal.std(), np.sqrt(independent)) / np.sqrt(len(ids))
    if abs(equal.mean() - independent) > 6 * error + 1e-9:
        raise LawBroken(
            f"groups {group} and {other} hold the same class in the same slot {equal.mean():.3g} times per draw, where "
            f"{independent:.3g} times are expected of independent draws: split the key once more per group"
        )


def _equal(first: Any, second: Any, what: str) -> None:
    differs = difference(first, second)
    if differs:
        raise LawBroken(f"{what}: {differs} differs")


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
    "undrawn": Law(
        1,
        "where counts follow the draw, those of ids that were not drawn are right to within a factor of 2 on average",
        "log_expected_count of ids that are not among the candidates",
        check_undrawn,
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
    "share": Law(
        0,
        "share(2) of a sampler with alike slots draws half of the samples, for one of two shards",
        "the numbers that share divides",
        check_share,
    ),
    "padded": Law(
        2,
        "the laws of ids and counts hold in a batch with padding too: an example without labels, whose embedding is 0",
        "what is done with labels of -1, and divisions by lengths",
        check_padded,
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
    # Last: what is wrong at once is no fault of updates.
    "later": Law(
        6,
        "what is drawn and stated obeys the laws after update and refresh too, and refresh learns of the classes given",
        "what update and refresh write into the state",
        check_later,
    ),
}
