"""Every sampler of the table obeys every law."""

import functools
from collections.abc import Callable

import numpy as np
import pytest

from tests.conformance import sampler_laws as laws
from tests.conformance.tables import SAMPLERS, classes_of

ALL = [(name, groups) for name, case in SAMPLERS.items() for groups in case.groups]
# One of each kind, one group an example (or the most there are): the rest are among the slow tests.
QUICK = [(name, case.groups[-1]) for name, case in SAMPLERS.items() if not case.slow]
NAMES = [pytest.param(name, marks=pytest.mark.slow) if case.slow else name for name, case in SAMPLERS.items()]
ANY_GROUPS = [entry if entry in QUICK else pytest.param(*entry, marks=pytest.mark.slow) for entry in ALL]
CHEAP = [entry for entry in NAMES if not SAMPLERS[entry if isinstance(entry, str) else entry.values[0]].cost_grows]


@functools.cache
def bench_of(name: str, num_groups: int | None) -> laws.Bench:
    """One bench a case, shared by the tests, so that each sampler is compiled once."""
    return laws.Bench(SAMPLERS[name], num_groups, classes_of(SAMPLERS[name]))


@functools.cache
def small_bench_of(name: str, num_groups: int | None) -> laws.Bench:
    return laws.small_bench(SAMPLERS[name], num_groups)


@pytest.mark.parametrize(("name", "num_groups"), QUICK)
def test_one_law(name: str, num_groups: int | None) -> None:
    laws.check_one_law(bench_of(name, num_groups))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_groups"), [entry for entry in ALL if entry not in QUICK])
def test_one_law_in_every_group(name: str, num_groups: int | None) -> None:
    laws.check_one_law(bench_of(name, num_groups), pooled=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_one_law_with_fewer_classes_than_samples(name: str) -> None:
    laws.check_one_law(small_bench_of(name, SAMPLERS[name].groups[0]))


@pytest.mark.parametrize("check", [laws.check_ids, laws.check_counts_agree])
@pytest.mark.parametrize(("name", "num_groups"), ANY_GROUPS)
def test_law_with_any_groups(check: Callable[[laws.Bench], None], name: str, num_groups: int | None) -> None:
    check(bench_of(name, num_groups))


@pytest.mark.parametrize(
    "check",
    [
        laws.check_facts,
        laws.check_state_keeps_structure,
        laws.check_randomness,
        laws.check_no_retrace,
        laws.check_holds_no_arrays,
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_law(check: Callable[[laws.Bench], None], name: str) -> None:
    check(bench_of(name, SAMPLERS[name].groups[-1]))


@pytest.mark.parametrize("check", [laws.check_ids, laws.check_counts_agree])
@pytest.mark.parametrize("name", NAMES)
def test_law_with_fewer_classes_than_samples(check: Callable[[laws.Bench], None], name: str) -> None:
    bench = small_bench_of(name, SAMPLERS[name].groups[0])
    check(bench)
    if not bench.sampler.facts.with_replacement:
        drawn = np.asarray(bench.draw(0).mask).sum(axis=1)
        slots = bench.draw(0).mask.shape[1]
        np.testing.assert_array_equal(drawn, np.minimum(bench.support.sum(axis=1), slots))


@pytest.mark.parametrize("name", CHEAP)
def test_cost_does_not_grow_with_num_classes(name: str) -> None:
    num_groups = SAMPLERS[name].groups[0]
    laws.check_cost(bench_of(name, num_groups), num_groups)
