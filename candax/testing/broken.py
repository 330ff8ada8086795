"""What a broken law raises, and the bound on time."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


class LawBroken(AssertionError):
    """A sampler, retriever or loss breaks a law, or there is not enough time to tell; the message says which."""


class Law(NamedTuple):
    """A law and how to look into a break of it.

    Attributes:
        number: that of the law in candax's design, 0 for what the types of ``candax.base`` promise.
        says: the law, in one sentence.
        advice: what to look at when it is broken.
        check: takes the bench and raises ``LawBroken`` if the law is broken; the message says where and by how much.
    """

    number: int
    says: str
    advice: str
    check: Callable[[Any], None]


class Clock:
    """Time left until ``seconds`` have passed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left, never below 0."""
        return max(self._end - time.monotonic(), 0.0)


def title(name: str, law: Law) -> str:
    """A law's number and name, as messages give them."""
    return f"law {law.number} ({name})" if law.number else f"the law of the types ({name})"


def chosen_laws(laws: str | Iterable[str] | None, table: Mapping[str, Law], default: list[str]) -> list[str]:
    """The names asked for, in the order of the table; an unknown one is an error."""
    if laws is None:
        return default
    names = [laws] if isinstance(laws, str) else list(laws)
    if not names:
        raise ValueError(f"laws: expected names among {', '.join(table)}, or None; got none of them.")
    unknown = [name for name in names if name not in table]
    if unknown:
        raise ValueError(f"laws: expected names among {', '.join(table)}; got {', '.join(map(repr, unknown))}")
    return [name for name in table if name in names]


def check_laws(names: list[str], table: Mapping[str, Law], bench: Any, what: str, clock: Clock) -> None:
    """Checks one law after the other on ``bench``; ``what`` is its name in messages."""
    for i, name in enumerate(names):
        law = table[name]
        if clock.left() == 0:
            raise LawBroken(
                f"{what}: {clock.seconds:g} seconds have passed and nothing was found so far, but these laws are not "
                f"decided: {', '.join(names[i:])}. Give more time with seconds=, or check fewer laws with laws=."
            )
        try:
            law.check(bench)
        except LawBroken as fault:
            raise LawBroken(
                f"{what}, {title(name, law)}: {fault}\nThe law: {law.says}\nWhat to look at: {law.advice}"
            ) from None
        except Exception as error:
            error.add_note(f"This happened while {title(name, law)} of {what} was checked.")
            raise
