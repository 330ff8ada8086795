"""Small problems for losses: a batch with everything in it, its float64 twin, and all draws of a small sampler."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from candax.base import Loss, SampledLogits


def make(seed: int = 0) -> tuple[SampledLogits, dict[str, np.ndarray]]:
    """A batch of 3 with two labels, one of them padded, a masked slot, a hit; the same in float64."""
    rng = np.random.default_rng(seed)
    fields = {
        "true": rng.normal(size=(3, 2)),
        "true_count": rng.normal(size=(3, 2)) - 2,
        "true_mask": np.array([[1, 1], [1, 0], [1, 1]], bool),
        "sampled": rng.normal(size=(3, 4)),
        "sampled_count": rng.normal(size=(3, 4)) - 1,
        "sampled_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]], bool),
        "hits": np.array([[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]], bool),
    }
    arrays: list[Any] = [jnp.asarray(a, a.dtype if a.dtype == bool else jnp.float32) for a in fields.values()]
    arrays.append(50)
    return SampledLogits(*arrays), fields


class Example(NamedTuple):
    """What is unmasked of one example, in float64."""

    true: np.ndarray
    true_count: np.ndarray
    sampled: np.ndarray
    sampled_count: np.ndarray
    hits: np.ndarray


def check_by_hand(loss: Loss, formula: Callable[[Example], float]) -> None:
    """Value and gradient of a loss against a float64 formula of one example and its central differences."""
    for seed in range(3):
        logits, fields = make(seed)

        def total(true: jax.Array, sampled: jax.Array, logits: SampledLogits = logits) -> tuple[jax.Array, jax.Array]:
            values = loss(dataclasses.replace(logits, true=true, sampled=sampled))
            return jnp.sum(values), values

        (_, values), gradients = jax.value_and_grad(total, (0, 1), has_aux=True)(logits.true, logits.sampled)
        np.testing.assert_allclose(values, [_one(formula, fields, b) for b in range(3)], rtol=1e-5, atol=1e-6)
        for name, gradient in zip(("true", "sampled"), gradients, strict=True):
            wanted = np.zeros(fields[name].shape)
            for b, slot in np.ndindex(wanted.shape):
                ends = []
                for step in (1e-5, -1e-5):
                    moved = fields | {name: fields[name].copy()}
                    moved[name][b, slot] += step
                    ends.append(_one(formula, moved, b))
                wanted[b, slot] = (ends[0] - ends[1]) / 2e-5
            np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-6)


def _one(formula: Callable[[Example], float], fields: dict[str, np.ndarray], b: int) -> float:
    true, sampled = fields["true_mask"][b], fields["sampled_mask"][b]
    of_true = [fields[name][b][true] for name in ("true", "true_count")]
    of_sampled = [fields[name][b][sampled] for name in ("sampled", "sampled_count", "hits")]
    return formula(Example(*of_true, *of_sampled))


def softplus(x: Any) -> Any:
    """``log(1 + exp(x))``, which is ``-log sigmoid(-x)``."""
    return np.logaddexp(0.0, x)


def draws_of(q: np.ndarray, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """All draws with replacement: ids [N, slots] and their probabilities [N]."""
    ids = np.array(list(itertools.product(range(len(q)), repeat=slots)))
    return ids, np.prod(q[ids], axis=1)


def logits_of(classes: jax.Array, labels: np.ndarray, ids: np.ndarray, expected_count: np.ndarray) -> SampledLogits:
    """What a head would make of logits of all classes [N, C], labels [N, T], draws [N, S] and expected counts [C]."""
    log_count = jnp.asarray(np.log(expected_count), classes.dtype)
    return SampledLogits(
        true=jnp.take_along_axis(classes, jnp.asarray(labels), axis=1),
        true_log_expected_count=log_count[labels],
        true_mask=jnp.ones(labels.shape, bool),
        sampled=jnp.take_along_axis(classes, jnp.asarray(ids), axis=1),
        sampled_log_expected_count=log_count[ids],
        sampled_mask=jnp.ones(ids.shape, bool),
        hits=jnp.asarray(np.any(ids[:, :, None] == labels[:, None, :], axis=2)),
        num_classes=len(expected_count),
    )
