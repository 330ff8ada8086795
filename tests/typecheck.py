"""The run-time type checker of the tests: beartype, taking an int where a float is asked for as PEP 484 does.

Beartype writes a program for every function that it checks, which costs milliseconds. Most functions of candax are
never called in one process, and factories define the same inner functions again at every call: so the program is
written at the first call, and once for all functions of one name and one signature. What is checked is the same.
"""

import inspect
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))
_checkers: dict[Any, Callable[..., Any]] = {}


def typecheck(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its arguments and what it returns checked.

    jaxtyping makes these functions of the signatures of candax's: they do nothing, or return an argument of their own.
    So two of one signature are the same function.
    """
    checker = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checker
        if checker is None:
            checker = _checker(function)
        return checker(*args, **kwargs)

    return call


def _checker(function: Callable[..., Any]) -> Callable[..., Any]:
    declared = (function.__module__, function.__qualname__, inspect.signature(function))
    try:
        known = declared in _checkers
    except TypeError:  # a default without a hash, such as an array
        return _beartype(function)
    if not known:
        _checkers[declared] = _beartype(function)
    return _checkers[declared]
