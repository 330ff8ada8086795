"""How a contender of the race is tuned on validation data: its rate first, then its batch and number of candidates."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from candax.experiments.race_tasks import QUALITY
from candax.recipes import common

# What was measured on the way by the seconds of training; None: it diverged.
Curve: TypeAlias = Mapping[str, Sequence[float]]


class Setting(NamedTuple):
    """Multiples of the recipe's learning rate, batch and number of candidates."""

    rate: float
    batch: float = 1.0
    candidates: float = 1.0


class Tuned(NamedTuple):
    """What was found.

    Attributes:
        settings: to train with; where that diverges, the next one.
        trials: a row for each trial.
    """

    settings: list[Setting]
    trials: list[dict[str, Any]]


def tune(
    trial: Callable[[Setting], Curve],
    rates: Sequence[float],
    more_rates: int,
    batches: Sequence[float],
    candidates: Sequence[float],
    nearly: float,
) -> Tuned:
    """Tries rates with the first batch and number of candidates, then the other batches, then the other numbers.

    A larger batch is tried with the best rate of the first one and with twice that, a smaller one with the best and
    half of it, other numbers of candidates with the best alone. Wherever several rates are tried, twice or half the
    best is tried too while the best is the highest or the lowest of them. A single rate is taken as it is.

    Batch and number are those whose best rate is soonest halfway between ``nearly`` and the best quality of all trials:
    what is chosen by the time to ``nearly`` itself would often stay below that of the full softmax.

    Args:
        trial: trains with a setting and measures quality by seconds; raises FloatingPointError if it diverges.
        rates: multiples of the recipe's rate.
        more_rates: how many further rates are tried, each time.
        batches: multiples of the recipe's batch.
        candidates: multiples of the recipe's number of candidates.
        nearly: the share of the full softmax's best quality that the race asks for.
    """
    rates, batches, candidates = (list(dict.fromkeys(some)) for some in (rates, batches, candidates))
    first = Setting(rates[0], batches[0], candidates[0])
    if len(rates) == len(batches) == len(candidates) == 1:
        return Tuned([first], [])
    more = more_rates if len(rates) > 1 else 0
    found: dict[Setting, Curve | None] = {}

    def attempt(of: Setting, some: Iterable[float], more: int) -> Setting:
        """The best of some rates, all else as in ``of``."""
        tried: list[Setting] = []
        left = [of._replace(rate=rate) for rate in some]
        number = len(left) + more
        while left and len(tried) < number:
            tried.append(left.pop(0))
            try:
                found[tried[-1]] = trial(tried[-1])
            except FloatingPointError:
                found[tried[-1]] = None
            left = left or _beyond(tried, found)
        return _best(tried, found)

    bests = [best := attempt(first, rates, more)]
    for batch in batches[1:]:
        near = [best.rate, best.rate * (2 if batch > first.batch else 0.5)] if len(rates) > 1 else rates
        bests.append(attempt(best._replace(batch=batch), near, more))
    soonest = _soonest(bests, found, nearly)
    for number in candidates[1:]:
        bests.append(attempt(soonest._replace(candidates=number), [soonest.rate], 0))
    soonest = _soonest(bests, found, nearly)
    alike = [of for of in found if of[1:] == soonest[1:]]
    order = sorted(alike, key=lambda of: (-_quality(found[of]), of.rate))
    order += sorted(found.keys() - set(alike), key=lambda of: (-_quality(found[of]), of))
    return Tuned(order, [{**of._asdict(), **_figures(curve)} for of, curve in found.items()])


def _quality(curve: Curve | None) -> float:
    return 0.0 if curve is None else curve[QUALITY][-1]


def _figures(curve: Curve | None) -> dict[str, Any]:
    seconds = None if curve is None else curve["seconds"][-1]
    return {QUALITY: _quality(curve), "seconds": seconds, "diverged": curve is None}


def _best(tried: Iterable[Setting], found: Mapping[Setting, Curve | None]) -> Setting:
    """The setting of the highest quality; that of the lowest rate, where all have diverged."""
    return max(sorted(tried), key=lambda of: _quality(found[of]))


def _beyond(tried: Sequence[Setting], found: Mapping[Setting, Curve | None]) -> list[Setting]:
    """A further rate, where the best is the highest or the lowest of those tried."""
    best, rates = _best(tried, found), [of.rate for of in tried]
    factors = [2.0] if best.rate == max(rates) else [0.5] if best.rate == min(rates) else []
    return [best._replace(rate=factor * best.rate) for factor in factors]


def _soonest(bests: Sequence[Setting], found: Mapping[Setting, Curve | None], nearly: float) -> Setting:
    level = (1 + nearly) / 2 * max(_quality(found[of]) for of in bests)

    def seconds(of: Setting) -> float:
        curve = found[of]
        reached = None if curve is None else common.reaching(curve, QUALITY, level, "seconds")
        return float("inf") if reached is None else reached

    return min(bests, key=seconds)
