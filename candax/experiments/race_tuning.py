"""How a contender of the race is tuned on validation data: its rate first, then its batch and number of candidates."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from candax.experiments.race_tasks import QUALITY
from candax.recipes import common

Curve: TypeAlias = Mapping[str, Sequence[float]]


class Sizes(NamedTuple):
    """Batch and number of candidates, as multiples of the recipe's."""

    batch: float = 1.0
    candidates: float = 1.0


class Tuned(NamedTuple):
    """What was found.

    Attributes:
        sizes: those that are soonest at nearly the best quality of all that were tried.
        rates: the quality by each rate that was tried with them.
        trials: rows of all trials.
    """

    sizes: Sizes
    rates: dict[float, float]
    trials: list[dict[str, Any]]


def tune(
    trial: Callable[[float, Sizes], Curve],
    rates: Sequence[float],
    more_rates: int,
    batches: Sequence[float],
    candidates: Sequence[float],
    nearly: float,
) -> Tuned:
    """Tries rates with the first batch and number of candidates, then the other batches, then the other numbers.

    A larger batch is tried with the best rate so far and twice that, a smaller one with the best and half of it, other
    numbers of candidates with the best alone. Wherever rates are tried, twice or half the best is tried too while the
    best is the highest or the lowest of them.

    Args:
        trial: trains with a rate and sizes and measures quality by seconds; raises FloatingPointError if it diverges.
        rates: multiples of the recipe's rate; one that is by itself, with no other sizes to try, needs no trial.
        more_rates: how many further rates are tried, each time.
        batches: multiples of the recipe's batch.
        candidates: multiples of the recipe's number of candidates.
        nearly: the share of the best quality of all trials that sizes have to reach soonest.
    """
    first = Sizes(batches[0], candidates[0])
    if len(rates) == len(batches) == len(candidates) == 1:
        return Tuned(first, {rates[0]: 0.0}, [])
    found: dict[Sizes, dict[float, Curve]] = {}

    def attempt(sizes: Sizes, some: Sequence[float], more: int) -> float:
        found[sizes] = _by_rate(lambda rate: trial(rate, sizes), some, more)
        return _best(found[sizes])

    best = attempt(first, rates, more_rates)
    for batch in batches[1:]:
        attempt(first._replace(batch=batch), (best, best * (2 if batch > first.batch else 0.5)), more_rates)
    batch = _soonest(found, nearly).batch
    for number in candidates[1:]:
        attempt(Sizes(batch, number), (_best(found[Sizes(batch, first.candidates)]),), 0)
    sizes = _soonest(found, nearly)
    rows = [
        {"rate": rate, **sizes._asdict(), QUALITY: curve[QUALITY][-1], "seconds": curve["seconds"][-1]}
        for sizes, curves in found.items()
        for rate, curve in curves.items()
    ]
    return Tuned(sizes, {rate: curve[QUALITY][-1] for rate, curve in found[sizes].items()}, rows)


def _by_rate(trial: Callable[[float], Curve], rates: Iterable[float], more: int) -> dict[float, Curve]:
    found: dict[float, Curve] = {}
    rates = list(rates)
    number = len(rates) + more
    while rates and len(found) < number:
        try:
            found[rates[0]] = trial(rates[0])
        except FloatingPointError:
            found[rates[0]] = {"seconds": [0.0], QUALITY: [0.0]}
        rates = rates[1:] or _beyond(found)
    return found


def _beyond(found: Mapping[float, Curve]) -> list[float]:
    """A further rate, where the best is the highest or the lowest of those tried."""
    best = _best(found)
    return [2 * best] if best == max(found) else [best / 2] if best == min(found) else []


def _best(found: Mapping[float, Curve]) -> float:
    """The rate of the highest quality; the lowest one, where all have diverged."""
    return max(sorted(found), key=lambda rate: found[rate][QUALITY][-1])


def _soonest(found: Mapping[Sizes, Mapping[float, Curve]], nearly: float) -> Sizes:
    """The sizes that are first at nearly the best quality, each with its best rate."""
    best = {sizes: curves[_best(curves)] for sizes, curves in found.items()}
    level = nearly * max(curve[QUALITY][-1] for curve in best.values())

    def seconds(sizes: Sizes) -> float:
        reached = common.reaching(best[sizes], QUALITY, level, "seconds")
        return float("inf") if reached is None else reached

    return min(best, key=seconds)
