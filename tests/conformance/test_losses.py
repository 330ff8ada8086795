"""Every loss of the table obeys every law. A failure names the law."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from candax import losses
from candax.testing import check_loss
from candax.testing.problems import make_logits
from tests.conformance.tables import LOSSES, SAMPLERS


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    case = LOSSES[name]
    told: dict[str, Any] = {"likelihood": case.likelihood, "corrected": case.corrected, "monotone": case.monotone}
    check_loss(case.loss, seconds=600.0, **told)


@pytest.mark.parametrize("wide", [False, True])
def test_losses_are_float32_of_logits_of_16_bits_and_among_float64(wide: bool) -> None:
    logits = make_logits(0)
    asked = {name: case.loss for name, case in LOSSES.items()} | {"d_softmax_b": losses.d_softmax_b}
    with jax.enable_x64(wide):
        for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
            narrow = dataclasses.replace(logits, true=logits.true.astype(dtype), sampled=logits.sampled.astype(dtype))
            found = {name: jax.eval_shape(loss, narrow).dtype for name, loss in asked.items()}
            assert {name for name, dtype in found.items() if dtype != jnp.float32} == set()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_losses_without_counts_need_no_promotion(dtype: Any) -> None:
    logits = make_logits(0)
    plain = (losses.ranking, losses.negative_sampling, losses.subset_softmax, losses.gbce, losses.d_softmax)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        other = dataclasses.replace(logits, true=logits.true.astype(dtype), sampled=logits.sampled.astype(dtype))
        for loss in plain:
            assert jax.eval_shape(loss, other).dtype == (jnp.float64 if dtype == jnp.float64 else jnp.float32)


# One with replacement, one without, and one that is correct over its index only.
QUICK_SAMPLERS = ("log_uniform", "uniform distinct", "lsh")


# A law over the batch says nothing about the normaliser of one batch.
@pytest.mark.parametrize(
    "sampler_name",
    [
        name if name in QUICK_SAMPLERS else pytest.param(name, marks=pytest.mark.slow)
        for name, case in SAMPLERS.items()
        if case.factory(case.groups[0]).facts.law_over != "batch"
    ],
)
@pytest.mark.parametrize("name", [name for name, case in LOSSES.items() if case.unbiased_normaliser])
def test_unbiased_normaliser(name: str, sampler_name: str) -> None:
    case = SAMPLERS[sampler_name]
    check_loss(
        LOSSES[name].loss,
        unbiased_normaliser=True,
        sampler=partial(case.factory, case.groups[0]),
        support=case.support,
        num_groups=case.groups[0],
        num_valid=case.num_valid,
        laws=["normaliser"],
        seconds=600.0,
    )
