"""Every loss of the table obeys every law. A failure names the law."""

from functools import partial
from typing import Any

import pytest

from candax.testing import check_loss
from tests.conformance.tables import LOSSES, SAMPLERS


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    case = LOSSES[name]
    told: dict[str, Any] = {"likelihood": case.likelihood, "corrected": case.corrected, "monotone": case.monotone}
    check_loss(case.loss, seconds=600.0, **told)


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
