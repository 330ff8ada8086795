"""When a training loop refreshes a sampler, by numbers of steps or functions of the step; and how nearly all do."""

from collections.abc import Callable

from candax.alike import made_once
from candax.base import Classes, KeyArray, State, never
from candax.checks import check_positive, checked


def built_anew(build: Callable[[KeyArray, Classes], State]) -> Callable[[State, KeyArray, Classes], State]:
    """The ``refresh`` of a sampler or retriever that keeps nothing of its state."""

    def refresh(state: State, key: KeyArray, classes: Classes) -> State:
        del state
        return build(key, classes)

    return refresh


def schedule_of(schedule: int | Callable[[int], bool] | None) -> Callable[[int], bool]:
    """The function of the step: n is due before steps n, 2n, 3n ..., not before step 0, for which the state is new.

    None stands for ``exponential_schedule()``.

    Raises:
        ValueError: if ``schedule`` is a number but not a positive integer.

    Example:
        >>> [step for step in range(10) if schedule_of(3)(step)]
        [3, 6, 9]
    """
    if callable(schedule):
        return schedule if schedule is never else lambda step: bool(schedule(step))
    if schedule is None:
        return exponential_schedule()
    check_positive("schedule (a number of steps)", schedule)
    return lambda step: step > 0 and step % schedule == 0


@checked
@made_once
def exponential_schedule(first: int = 50, *, growth: float = 1.1) -> Callable[[int], bool]:
    """Refreshes after ``first`` steps, then after intervals that grow by a factor: first * growth^i, rounded.

    A pure function of the step, so that a resumed training refreshes at the same steps.

    Args:
        first: steps before the first refresh.
        growth: of the intervals, at least 1; 1 refreshes every ``first`` steps.

    Returns:
        ``step -> bool``, for ``lsh(schedule=...)`` or ``every``.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> due = exponential_schedule(50, growth=2.0)
        >>> [step for step in range(1000) if due(step)]
        [50, 150, 350, 750]

    Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), section
        3.3; the growth is not given there.
    """
    check_positive("first (a number of steps)", first)
    if not 1 <= growth < float("inf"):
        raise ValueError(f"expected a finite growth >= 1, got {growth!r}.")

    def schedule(step: int) -> bool:
        if growth == 1:
            return step > 0 and step % first == 0
        refresh, interval = first, float(first)
        while refresh < step:
            interval *= growth
            refresh += round(interval)
        return refresh == step

    return schedule
