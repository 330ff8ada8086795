"""Refuses arguments of a kind with advice of its own, which a comparison with annotations does not have."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def refusing(kind: type, why: str) -> Callable[[F], F]:
    """Has a function raise ValueError for arguments of a kind, alone or in tuples; it goes around ``@checked``.

    Example:
        >>> @refusing(complex, "expected real numbers.")
        ... def double(number): ...
        >>> double(1j)
        Traceback (most recent call last):
        ValueError: expected real numbers.
    """

    def refused(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            for given in (*args, *kwargs.values()):
                if any(isinstance(one, kind) for one in (given if type(given) is tuple else (given,))):
                    raise ValueError(why)
            return function(*args, **kwargs)

        return cast(F, call)

    return refused
