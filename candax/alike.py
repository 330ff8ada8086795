"""Made once: what factories make of the same arguments is the same, and finds what was compiled for it before."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Made = TypeVar("Made")
# How many of a factory are kept.
_KEPT = 64


def made_once(factory: Callable[P, Made]) -> Callable[P, Made]:
    """The factory, which makes a new one only for arguments that it has not had, or that have no hash.

    Two samplers are equal only if their functions are the same ones, and what is compiled is found again by equality:
    so a second training with the same settings need not be compiled anew.

    Example:
        >>> draw = made_once(lambda number: lambda: number)
        >>> draw(1) is draw(1), draw(1) is draw(True)
        (True, False)
    """
    # By types too: True is no 1.
    kept = functools.lru_cache(maxsize=_KEPT, typed=True)(factory)

    @functools.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> Made:
        # Lists have no hash, tuples of samplers do.
        some: Any = [tuple(value) if isinstance(value, list) else value for value in args]
        named: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in kwargs.items()}
        try:
            hash((*some, *named.values()))
        except TypeError:
            return factory(*args, **kwargs)
        return kept(*some, **named)

    return make
