"""When a training loop refreshes a sampler: numbers of steps and functions of the step."""

from collections.abc import Callable

from candax.checks import check_positive


def schedule_of(schedule: int | Callable[[int], bool]) -> Callable[[int], bool]:
    """The function of the step: n is due before steps n, 2n, 3n ..., not before step 0, for which the state is new.

    Raises:
        ValueError: if ``schedule`` is a number but not a positive integer.

    Example:
        >>> [step for step in range(10) if schedule_of(3)(step)]
        [3, 6, 9]
    """
    if callable(schedule):
        return schedule
    check_positive("schedule (a number of steps)", schedule)
    return lambda step: step > 0 and step % schedule == 0
