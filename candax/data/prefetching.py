"""Items made ready in the background."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from candax.checks import checked

T = TypeVar("T")


class _End:
    """The sign that the last item has been passed."""


@checked
def prefetch(iterable: Iterable[T], size: int = 2) -> Generator[T, None, None]:
    """Takes items from ``iterable`` in a thread, up to ``size`` ahead of their use.

    An error in the thread is raised here, in its place among the items. Closing this iterator, or dropping it, waits
    for the item that is being made and ends the thread.

    Args:
        iterable: Where the items come from; only the thread touches it from here on.
        size: How many items may be waiting or being made.

    Returns:
        The items, in order.

    Raises:
        ValueError: If ``size`` is not positive.

    Example:
        >>> list(prefetch(range(4)))
        [0, 1, 2, 3]
    """
    if size < 1:
        raise ValueError(f"expected a size of 1 or more; got {size}")
    return _prefetch(iter(iterable), size)


def _prefetch(iterator: Iterator[T], size: int) -> Generator[T, None, None]:
    # One worker, so that the items stay in order.
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")

    def ask() -> Future[T | _End]:
        return executor.submit(next, iterator, _End())

    try:
        waiting = deque(ask() for _ in range(size))
        while not isinstance(item := waiting.popleft().result(), _End):
            waiting.append(ask())
            yield item
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
