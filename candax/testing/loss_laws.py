"""The laws of losses, as functions of a ``LossBench``; ``LOSS_LAWS`` is the table of them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from candax.base import SampledLogits
from candax.testing.broken import Law, LawBroken
from candax.testing.likelihood_laws import LIKELIHOOD_LAWS, check_normaliser
from candax.testing.loss_bench import PARTS, LossBench, check_all, check_close
from candax.testing.problems import B, S, T, extreme_logits, make_logits, with_more_labels

# Random extreme examples that law "finite" tries.
EXTREMES = 1 << 13


def check_shape(bench: LossBench) -> None:
    """One unreduced float32 number per example."""
    bench.check_types(make_logits(0))


def check_masked(bench: LossBench) -> None:
    """Law 2: whatever masked slots hold, NaN included, and how many there are, reaches neither value nor gradient."""
    for seed in range(5):
        logits = make_logits(seed)
        clean = bench.value_and_gradient(logits)
        for name, part in zip(PARTS, clean, strict=True):
            check_all(np.isfinite(part), f"{name} is not finite")
        check_all(clean[1][~np.asarray(logits.true_mask)] == 0, "a masked label has a gradient")
        check_all(clean[2][~np.asarray(logits.sampled_mask)] == 0, "a masked sample has a gradient")
        for rubbish in (np.nan, np.inf, -np.inf, 1e30):
            dirty = dataclasses.replace(
                logits,
                true=jnp.where(logits.true_mask, logits.true, rubbish),
                true_log_expected_count=jnp.where(logits.true_mask, logits.true_log_expected_count, rubbish),
                sampled=jnp.where(logits.sampled_mask, logits.sampled, rubbish),
                sampled_log_expected_count=jnp.where(logits.sampled_mask, logits.sampled_log_expected_count, rubbish),
                hits=logits.hits | ~logits.sampled_mask,
            )
            for name, got, wanted in zip(PARTS, bench.value_and_gradient(dirty), clean, strict=True):
                check_close(got, wanted, 1e-6, 1e-7, f"{name}, once masked slots hold {rubbish}")
        longer = bench.value_and_gradient(_with_masked_slots(logits))
        for name, got, wanted in zip(PARTS, longer, clean, strict=True):
            # Sums of another length may be taken in another order.
            check_close(
                got[:, : wanted.shape[1]] if wanted.ndim > 1 else got,
                wanted,
                1e-5,
                1e-6,
                f"{name}, once there are more masked slots",
            )


def _with_masked_slots(logits: SampledLogits) -> SampledLogits:
    """With a masked slot more of labels, and one of samples."""
    return jax.tree.map(lambda field: jnp.pad(field, ((0, 0), (0, 1))), logits)


def check_unmasked(bench: LossBench) -> None:
    """NaN in a slot that counts makes the loss NaN: what has gone wrong must not look like a small loss."""
    for seed in range(5):
        # What labels count for may leave no room for candidates.
        logits = dataclasses.replace(make_logits(seed), true_log_expected_count=jnp.full((B, T), -jnp.inf))
        kept = logits.sampled_mask & ~logits.hits
        of = {
            "label": (dataclasses.replace(logits, true=jnp.where(logits.true_mask, jnp.nan, 0.0)), logits.true_mask),
            "candidate": (dataclasses.replace(logits, sampled=jnp.where(kept, jnp.nan, logits.sampled)), kept),
        }
        for what, (case, slots) in of.items():
            finite = np.isfinite(bench.values(case)) & np.any(np.asarray(slots), axis=1)
            check_all(~finite, f"the loss is a number where the logits of each {what} are NaN")


def check_finite(bench: LossBench) -> None:
    """Law 4 without candidates, with only hits, impossible classes or extreme logits; without labels the loss is 0."""
    logits = make_logits(1)
    none = jnp.zeros((B, S), bool)
    impossible = jnp.full((B, T), -jnp.inf), jnp.full((B, S), -jnp.inf)
    cases = {
        "without candidates": dataclasses.replace(logits, sampled_mask=none),
        "when all candidates are hits": dataclasses.replace(logits, hits=~none, sampled_mask=~none),
        "when labels are impossible": dataclasses.replace(logits, true_log_expected_count=impossible[0]),
        "when samples have count 0": dataclasses.replace(logits, sampled_log_expected_count=impossible[1]),
    }
    for true in (-80.0, 80.0):
        for sampled in (-80.0, 80.0):
            edge = dataclasses.replace(logits, true=jnp.full((B, T), true), sampled=jnp.full((B, S), sampled))
            which = f"at true logits {true:g} and sampled logits {sampled:g}"
            cases[which] = edge
            rare = dataclasses.replace(edge, sampled_log_expected_count=jnp.full((B, S), -80.0))
            cases[f"{which} of rare classes"] = rare
            cases[f"{which} without candidates"] = dataclasses.replace(edge, sampled_mask=none)
    for which, case in cases.items():
        for name, part in zip(PARTS, bench.value_and_gradient(case), strict=True):
            check_all(np.isfinite(part), f"{name} is not finite {which}")
    unlabelled = dataclasses.replace(logits, true_mask=jnp.zeros((B, T), bool))
    for name, part in zip(PARTS, bench.value_and_gradient(unlabelled), strict=True):
        check_all(part == 0, f"{name} of an example without labels is not 0")
    empty = jax.tree.map(lambda field: field[:, :0], logits)
    check_all(bench.values(empty) == 0, "the loss without labels and without candidates is not 0")
    extremes = extreme_logits(0, EXTREMES)
    for name, part in zip(PARTS, bench.value_and_gradient(extremes), strict=True):
        bad = np.argwhere(~np.isfinite(part))
        if len(bad):
            leaves, structure = jax.tree.flatten(extremes)
            which = jax.tree.unflatten(structure, [np.asarray(leaf)[bad[0][0]].tolist() for leaf in leaves])
            raise LawBroken(f"{name} is not finite for some of {EXTREMES:,} extreme examples; the first is {which}")


def check_order(bench: LossBench) -> None:
    """Permuting the samples, or the labels, changes nothing but rounding."""
    for seed in range(5):
        logits = make_logits(seed)
        samples, labels = np.random.default_rng(seed).permutation(S), np.roll(np.arange(T), 1 + seed % (T - 1))
        names = ("sampled", "sampled_log_expected_count", "sampled_mask", "hits")
        of_labels = ("true", "true_log_expected_count", "true_mask")
        for what, order, fields in (("samples", samples, names), ("labels", labels, of_labels)):
            permuted = dataclasses.replace(logits, **{name: getattr(logits, name)[:, order] for name in fields})
            check_close(
                bench.values(permuted), bench.values(logits), 1e-5, 1e-6, f"the loss with its {what} in another order"
            )


def check_direction(bench: LossBench) -> None:
    """With one label, a loss does not grow with its logit, nor fall as those of candidates that are no labels grow.

    Of several labels one may take from the others. Candidates move together, or each is there alone: one of several
    may lower a right loss, as ``blackout`` is lowered by what a candidate takes from the others.
    """
    others = "candidates that are no labels"
    changes = {"falls as the logit of the label grows": False, f"grows with the logits of {others}": False}
    for seed in range(10):
        random = make_logits(seed)
        # Cosines are logits too, and margins take nothing else. Below -0.8 an angle and its margin may be above pi.
        true, sampled = (0.8 * jnp.tanh(part / 2) for part in (random.true, random.sampled))
        one_label = random.true_mask & (jnp.arange(T) == seed % T)
        alone = [random.sampled_mask & (jnp.arange(S) == slot) for slot in range(S)]
        for mask in (random.sampled_mask, *alone):
            logits = dataclasses.replace(random, true=true, true_mask=one_label, sampled=sampled, sampled_mask=mask)
            _, of_true, of_sampled = bench.value_and_gradient(logits)
            of_others = np.where(mask & ~logits.hits, of_sampled, 0)
            wrong = ("grows with the logit of the label", f"falls as the logits of {others} grow")
            for right, says, part in zip(changes, wrong, (-of_true, of_others), strict=True):
                # To rounding: terms of both signs may cancel.
                rate, rounding = part.sum(axis=1), 1e-5 * np.abs(part).sum(axis=1) + 1e-7
                check_all(rate >= -rounding, f"the loss {says} (by {-np.min(rate):.4g} per unit)")
                changes[right] |= bool(np.any(rate > rounding))
    for right, seen in changes.items():
        if not seen:
            raise LawBroken(f"the loss never {right}")


# The step of finite differences: margins multiply logits by up to 64, which bends the loss.
_STEP = 2e-3
# Of the examples: at a kink, as a hinge has, slope and gradient differ.
_SMOOTH = 0.8


def check_gradient(bench: LossBench) -> None:
    """The gradient is that of the value: along true logits, and along sampled ones, it is the slope of the loss."""
    rng = np.random.default_rng(5)
    agree: dict[str, list[np.ndarray]] = {"true": [], "sampled": []}
    for seed in range(10):
        random = make_logits(seed)
        # Cosines are logits too, and margins take nothing else.
        true, sampled = (0.8 * jnp.tanh(part / 2) for part in (random.true, random.sampled))
        logits = dataclasses.replace(random, true=true, sampled=sampled)
        _, *gradients = bench.value_and_gradient(logits)
        for (name, fine), gradient in zip(agree.items(), gradients, strict=True):
            step = jnp.asarray(rng.choice([-_STEP, _STEP], gradient.shape), jnp.float32)
            ahead, behind = (
                bench.values(dataclasses.replace(logits, **{name: getattr(logits, name) + sign * step}))
                for sign in (1, -1)
            )
            terms = gradient * np.asarray(step) / _STEP
            slope, rounding = (ahead - behind) / (2 * _STEP), 1e-6 * np.abs(ahead) / _STEP
            largest = 1e-3 * np.max(np.abs(terms), initial=0.0)
            fine.append(np.abs(slope - terms.sum(axis=1)) <= 0.03 * np.abs(terms).sum(axis=1) + rounding + largest)
    for name, fine in agree.items():
        share = float(np.mean(fine))
        if share < _SMOOTH:
            raise LawBroken(
                f"the gradient of {name} logits is the slope of the loss in {share:.0%} of the examples, expected are "
                f"{_SMOOTH:.0%} at least"
            )


def check_alone(bench: LossBench) -> None:
    """The loss of an example does not depend on the rest of the batch."""
    logits = make_logits(3)
    alone = [bench.values(jax.tree.map(lambda field, b=b: field[b : b + 1], logits)) for b in range(B)]
    check_close(np.concatenate(alone), bench.values(logits), 1e-5, 1e-6, "the loss of an example without the others")


def check_counts(bench: LossBench) -> None:
    """Corrections are constants: an adaptive sampler's counts must not be trained through the loss."""
    logits = make_logits(0)

    def total(true_count: Array, sampled_count: Array) -> Array:
        counts: dict[str, Any] = {"true_log_expected_count": true_count, "sampled_log_expected_count": sampled_count}
        return jnp.sum(bench.loss(dataclasses.replace(logits, **counts)))

    of_counts = jax.jit(jax.grad(total, argnums=(0, 1)))(
        logits.true_log_expected_count, logits.sampled_log_expected_count
    )
    for part in of_counts:
        largest = np.max(np.abs(np.nan_to_num(part, nan=np.inf)))
        check_all(np.asarray(part) == 0, f"log expected counts have a gradient (up to {largest:.4g})")


def check_more_labels(bench: LossBench) -> None:
    """Labels without a slot of their own: masked ones change nothing, nor does an array without slots."""
    for seed in range(5):
        logits = make_logits(seed)
        more = with_more_labels(logits, seed)
        found = bench.value_and_gradient(more)
        for name, part in zip(PARTS, found, strict=True):
            check_all(np.isfinite(part), f"{name} is not finite where examples have more labels than slots")
        other = dataclasses.replace(more, more_hits=more.more_hits ^ ~logits.sampled_mask)  # type: ignore[operator]
        none = dataclasses.replace(more, more_hits=jnp.zeros((B, S), bool), num_labels=jnp.sum(logits.true_mask, 1))
        told = {"once masked slots have other more_hits": (other, found)}
        told["told that all labels have a slot"] = none, bench.value_and_gradient(logits)
        for which, (case, wanted) in told.items():
            for name, got, part in zip(PARTS, bench.value_and_gradient(case), wanted, strict=True):
                check_close(got, part, 1e-5, 1e-6, f"{name}, {which}")


LOSS_LAWS: dict[str, Law] = {
    "shape": Law(0, "a loss is one unreduced float32 number per example", "reductions over the batch", check_shape),
    "masked": Law(
        2,
        "masked slots reach neither value nor gradient, also when they hold NaN, however many there are",
        "jnp.where before exp, log and division too (a gradient of 0 * NaN is NaN), and means over slots",
        check_masked,
    ),
    "unmasked": Law(
        2,
        "a logit that is NaN makes the loss NaN where it counts",
        "comparisons, which are False of NaN: jnp.where(x > 0, ..., 0) takes it for 0",
        check_unmasked,
    ),
    "finite": Law(
        4,
        "no loss and no gradient is NaN or infinite for logits within +-80, any mask and any count",
        "exp without its maximum, log of 0 and -inf - -inf; counts are subtracted safely by "
        "candax.losses.common.minus_log_expected_count",
        check_finite,
    ),
    "order": Law(
        0, "the order of samples and labels does not matter", "slots that are treated by position", check_order
    ),
    "direction": Law(
        0,
        "a loss falls as a lone label scores higher, and grows as candidates that are no labels do",
        "signs and cut gradients; for a loss that is meant to do otherwise, as label smoothing is, say monotone=False",
        check_direction,
    ),
    "gradient": Law(
        0,
        "the gradient of a loss is that of its value",
        "stop_gradient, and derivatives of one's own; for a loss that is meant to hold a part of itself constant say "
        "surrogate=True",
        check_gradient,
    ),
    "alone": Law(0, "examples do not depend on each other", "means or maxima over the batch", check_alone),
    "counts": Law(
        0, "no gradient flows into log expected counts", "jax.lax.stop_gradient around the counts", check_counts
    ),
    "more_labels": Law(
        0,
        "more_hits of masked slots say nothing, and without further labels more_hits and num_labels change nothing",
        "masks, and what is done with num_labels",
        check_more_labels,
    ),
    **LIKELIHOOD_LAWS,
    "normaliser": Law(
        1,
        "E[exp(loss + mean true logit)] is the softmax normaliser over the labels and the support of the sampler",
        "the corrections of true and sampled logits, and hits",
        check_normaliser,
    ),
}
