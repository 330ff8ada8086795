import threading
from collections.abc import Iterator

import pytest

from candax.data import prefetch


def prefetch_threads() -> int:
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


@pytest.mark.parametrize("size", [1, 2, 50])
def test_all_items_in_order(size: int) -> None:
    assert list(prefetch(iter(range(20)), size)) == list(range(20))
    assert list(prefetch([], size)) == []
    assert prefetch_threads() == 0


def test_items_are_made_ahead_in_another_thread() -> None:
    made: list[str] = []
    third = threading.Event()

    def source() -> Iterator[int]:
        for i in range(10):
            made.append(threading.current_thread().name)
            if i == 2:
                third.set()
            yield i

    items = prefetch(source(), 2)
    assert next(items) == 0
    assert third.wait(5)
    items.close()
    assert all(name.startswith("prefetch") for name in made)
    # One is used; two wait; none more was asked for.
    assert len(made) == 3


def test_errors_come_in_their_place() -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("lost")

    items = prefetch(source(), 4)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(KeyError, match="lost"):
        next(items)
    assert list(items) == []
    assert prefetch_threads() == 0


def test_closing_ends_the_thread() -> None:
    for item in (items := prefetch(iter(range(10**9)))):
        if item == 3:
            break
    assert prefetch_threads() == 1
    items.close()
    assert prefetch_threads() == 0


def test_wrong_size() -> None:
    with pytest.raises(ValueError, match="size of 1 or more; got 0"):
        prefetch([1], 0)
