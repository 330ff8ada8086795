"""Wrong arguments: each is refused by an error of ours, in a sentence with what was expected and what came.

Every public function has a good call in ``calls.GOOD``. A trial replaces one argument by a value of another kind,
dtype, rank or range, or by NaN. What the annotation does not allow must be refused; what it allows may be taken, but
no other library may be the one that complains, and numbers that cannot be meant (NaN, infinity, too few) are refused.
"""

import contextlib
import math
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import candax as cx
from tests.campaign import calls, made
from tests.campaign.trials import BadError, Part

_OURS = str(Path(cx.__file__).parent)
_SENTENCE = re.compile(
    r"(expected|takes|missing|unexpected|must|needs|cannot|no such|does not|no file).*", re.IGNORECASE | re.DOTALL
)
# Errors of a line and a half are read; pages are not.
_LONGEST = 600

WRONG: Mapping[str, Callable[[], Any]] = {
    "None": lambda: None,
    "a word": lambda: "x",
    "bytes": lambda: b"x",
    "2.5": lambda: 2.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-3": lambda: -3,
    "0": lambda: 0,
    "2**70": lambda: 2**70,
    "True": lambda: True,
    "1j": lambda: 1j,
    "a list": lambda: [1],
    "a dict": lambda: {"a": 1},
    "an object": lambda: object(),
    "a vector": lambda: jnp.ones(3),
    "a matrix of ints": lambda: np.ones((2, 3), np.int32),
    "an array of rank 4": lambda: jnp.ones((1, 2, 1, 2)),
    "an array of NaN": lambda: np.full((2, 3), np.nan),
    "an array of words": lambda: np.array(["x"]),
    "an empty array": lambda: np.zeros((0, 3), np.float32),
    "a factory": lambda: cx.samplers.uniform,
    "a sampler": lambda: cx.samplers.uniform(3),
    "a loss": lambda: cx.losses.css,
    "a key": lambda: jax.random.key(0),
    "a path": lambda: Path("/dev/null/at/all"),
}


def trial(rng: np.random.Generator, folder: Path) -> str:
    """One wrong argument of one function."""
    name = NAMES[int(rng.integers(0, len(NAMES)))]
    function, good = calls.GOOD[name](folder)
    parameters = [parameter for parameter in good if parameter not in calls.ANYTHING.get(name, ())]
    if not parameters:
        return "left out"
    parameter = parameters[int(rng.integers(0, len(parameters)))]
    kind = list(WRONG)[int(rng.integers(0, len(WRONG)))]
    if (parameter, kind) in calls.TOO_LONG:
        return "left out"
    with contextlib.chdir(folder):  # a path such as "x" is taken
        return attempt(name, function, good, parameter, kind)


def attempt(name: str, function: Callable[..., Any], good: Mapping[str, Any], parameter: str, kind: str) -> str:
    """Calls a function with one argument replaced."""
    value = WRONG[kind]()
    what = f"{name}({parameter}={kind})"
    try:
        made.call(function, {**good, parameter: value})
    except (ValueError, TypeError, OSError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if isinstance(error, OSError) and error.filename is not None:  # a file that is not there
            return "refused"
        if not last.filename.startswith(_OURS):
            raise BadError(f"{what}: {type(error).__name__} from {last.filename}: {str(error)[:300]}") from error
        if not _SENTENCE.search(str(error)) or len(str(error)) > _LONGEST:
            raise BadError(f"{what}: says {str(error)[:_LONGEST]!r}") from error
        return "refused"
    except cx.testing.LawBroken:  # the argument is right, and the law is not kept
        return "taken"
    except Exception as error:
        raise BadError(f"{what}: {error!r}"[:_LONGEST]) from error
    if (name, parameter) in calls.MAY_BE_NEGATIVE and value == -3:
        return "taken"
    if why := _not_meant(name, function, parameter, good[parameter], value):
        raise BadError(f"{what}: {why}, and it is taken")
    return "taken"


def _not_meant(name: str, function: Callable[..., Any], parameter: str, good: Any, value: Any) -> str | None:
    """Why a value that was taken cannot be one."""
    annotation = made.signature(function).parameters.get(parameter)
    optional = annotation is not None and ("None" in str(annotation.annotation) or annotation.default is None)
    if value is None:
        return None if optional or good is None else "None"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(good, bool):
        return None if isinstance(value, bool) else f"{value!r} for a bool"
    if callable(value) and annotation is not None and "Callable" in str(annotation.annotation):
        return None
    if isinstance(good, int | float):
        if not number:
            return f"{type(value).__name__} for a number"
        if isinstance(good, int) and isinstance(value, float):
            return "a fraction for a number of things"
        return None if math.isfinite(value) and 0 <= value < 2**63 else f"{value}"
    if isinstance(good, str | Path):
        return None if isinstance(value, str | Path) else f"{type(value).__name__} for {type(good).__name__}"
    if isinstance(good, jax.Array | np.ndarray):
        if not isinstance(value, jax.Array | np.ndarray):
            return f"{type(value).__name__} for an array"
        if value.ndim != good.ndim and name not in calls.ANY_RANK:
            return f"{value.ndim} dimensions for {good.ndim}"
        return None
    if callable(good):
        return None if callable(value) else f"{type(value).__name__} for a function"
    if isinstance(good, list | tuple) and isinstance(value, list | tuple):
        return None
    return f"{type(value).__name__} for {type(good).__name__}" if type(value) is not type(good) else None


NAMES = list(calls.GOOD)
PART = Part(trial, 60.0)
