"""Checks of arguments: of the types of all that a public function takes, of numbers of things, and of ids."""

import collections.abc
import functools
import inspect
import math
import reprlib
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints, no_type_check

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
# Seeds and counts fit into 64 bits.
_LARGEST = 2**63
# How many of a list are looked at.
_LOOKED_AT = 1000
# Characters of a value that an error shows.
_LONGEST = 100
_WORDS = {int: "an integer", float: "a finite number", bool: "True or False", str: "a text", type(None): "None"}
_MANY = {int: "integers", float: "finite numbers", bool: "booleans", str: "texts"}
_PLAIN = {collections.abc.Iterable: "iterable", collections.abc.Sequence: "list"}
_DTYPES = {"Float": "floats", "Int": "integers", "Integer": "integers", "Bool": "booleans"}
# What to do, by the argument's name.
_ADVICE = {
    "logits": " A head makes them: hand the loss over, as in cx.Head(..., loss=cx.losses.css), uncalled.",
    "gradients": " candax.value_and_grad makes them.",
    "ids": " Lists become arrays by np.asarray, and whole numbers of another type ids by array.astype(np.int32).",
    "labels": " Labels are class ids: take argmax of one-hot or probability arrays.",
    "table": " A matrix of your own goes into head.vectors[...] once the head is made; then, where the sampler has an "
    "index, head.use(head.sampler, head.loss_function) builds it of them.",
}
# Packages whose lines no warning is about.
_LIBRARIES = ("candax", "flax", "jax", "contextlib", "functools", "jaxtyping")
_SHOWN = (str, bytes, int, float, complex, list, tuple, dict, Path)


class WrongArgumentError(ValueError, TypeError):
    """An argument of another type, or a number that cannot be meant."""


def checked(function: F) -> F:
    """Has every argument of a function compared with its annotation, shapes of arrays with those of one another.

    Numbers must be finite, and NumPy arrays become JAX arrays where these are asked for. It costs some 20 microseconds
    per call, in functions inside a compiled step only while they are traced.

    Args:
        function: with annotations; of a class, what makes its objects.

    Returns:
        The function, or the class itself.

    Example:
        >>> @checked
        ... def take(number: int | None) -> None: ...
        >>> take(2.5)
        Traceback (most recent call last):
        candax.checks.WrongArgumentError: take: expected number to be an integer or None, got 2.5.
    """
    if isinstance(function, type):
        function.__init__ = checked(function.__init__)  # type: ignore[misc]
        return function

    signature = inspect.signature(function)
    hints = functools.cache(lambda: get_type_hints(function, include_extras=True))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # which says what is missing, in Python's words
        _check(function, signature, hints(), bound.arguments)
        return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


def refusing(kind: type, why: str) -> Callable[[F], F]:
    """Has a function raise ValueError for arguments of a kind, alone or in tuples; it goes around ``@checked``.

    With advice of its own, which a comparison with annotations does not have.

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


def warn(message: str) -> None:
    """Warns of the user's line that led here: the innermost one outside of candax, Flax and JAX.

    A fixed ``stacklevel`` would mean a line of what stands between, such as ``checked`` and Flax's class of modules.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def check_positive(name: str, value: object, *, optional: bool = False) -> None:
    """Raises where a number of things is not an integer of 1 or more; None is one where it is ``optional``."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(
            f"expected {name} to be an integer >= 1{' or None' if optional else ''}, got {described(value)}."
        )


def check_rate(name: str, value: float) -> None:
    """Raises ValueError unless a share of what is left out is at least 0 and less than 1."""
    if not 0 <= value < 1:
        raise ValueError(f"expected {name} of at least 0 and less than 1, got {value!r}.")


def check_ids(ids: Any, number: Any, what: str) -> None:
    """Raises ValueError for ids that are no integers, below -1 or from ``number`` on."""
    ids = np.asarray(ids)
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"expected integer {what}, got {ids.dtype}{list(ids.shape)}. One-hot arrays become ids by "
            "np.argmax(array, axis=-1)."
        )
    if not ids.size:
        return
    low, high = int(ids.min()), int(ids.max())
    if low < -1 or high >= number:
        raise ValueError(
            f"expected {what} in 0 ... {number - 1} (-1: none), got {low if low < -1 else high}. Check the data, or "
            "the sizes given to the model."
        )


def check_32_bits(array: np.ndarray, at: str = "") -> None:
    """Raises ValueError for integers that JAX would cut off to 32 bits, and so turn into others."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize <= 4 or not array.size:
        return
    import jax

    low, high = int(array.min()), int(array.max())
    if (low < -(2**31) or high >= 2**31) and not jax.config.read("jax_enable_x64"):
        raise ValueError(f"{at}expected integers of 32 bits, got {low if low < -(2**31) else high}.")


def described(value: Any) -> str:
    """A value in some words; of arrays their dtype and shape."""
    if _is_array(value):
        return f"{f'a {type(value).__name__}' if _is_sparse(value) else 'an array'} {value.dtype}{list(value.shape)}"
    if inspect.isroutine(value) or inspect.isclass(value):
        return f"the {'class' if inspect.isclass(value) else 'function'} {value.__name__}"
    if value is None or isinstance(value, _SHOWN):
        shown = reprlib.repr(value)
        return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 4]} ..."
    return f"a {type(value).__name__}"


def _check(
    function: Callable[..., Any], signature: inspect.Signature, hints: Mapping[str, Any], arguments: dict[str, Any]
) -> None:
    """Raises for the first argument that is not as annotated; makes JAX arrays of NumPy's where these are asked for."""
    import jaxtyping

    with jaxtyping.jaxtyped("context"):
        for name, value in arguments.items():
            kind = signature.parameters[name].kind
            if name not in hints or kind is inspect.Parameter.VAR_KEYWORD:
                continue
            if kind is inspect.Parameter.VAR_POSITIONAL:
                for each in value:
                    if not fits(each, hints[name]):
                        raise WrongArgumentError(_sentence(function, name, hints[name], {**arguments, name: each}))
                continue
            if fits(value, hints[name]):
                continue
            converted = _converted(value)
            if converted is value or not fits(converted, hints[name]):
                raise WrongArgumentError(_sentence(function, name, hints[name], arguments))
            arguments[name] = converted


def _converted(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biuf":
        return value
    import jax.numpy as jnp

    array = np.asarray(value)
    check_32_bits(array)
    return jnp.asarray(array)


@no_type_check  # a checker of functions would forget the shapes of earlier arguments in each
def fits(value: Any, hint: Any) -> bool:
    """Whether a value is as annotated, and a number one that can be meant."""
    from beartype.door import is_bearable

    if isinstance(value, np.generic):
        value = value.item()
    members = set(_members(hint))
    # A text is a sequence of texts, a dict iterable and so is an array without length: none is a list.
    lists = {of for of in members if _is_list(of)}
    if lists and (isinstance(value, str | bytes | dict) or (_is_array(value) and value.shape == ())):
        return any(fits(value, of) for of in members - lists)
    if lists and type(value) in (list, tuple):  # of these beartype looks at one, by chance
        kinds = [(get_origin(of), get_args(of)[0]) for of in lists]
        fit = any(isinstance(value, kind) and all(fits(one, of) for one in value[:_LOOKED_AT]) for kind, of in kinds)
        return fit or any(fits(value, of) for of in members - lists)
    if isinstance(value, bool):
        return is_bearable(value, hint) and (bool in members or not members & {int, float})
    if isinstance(value, int):  # numbers with a fraction may be given without one
        return abs(value) < _LARGEST and (is_bearable(value, hint) or is_bearable(float(value), hint))
    return is_bearable(value, hint) and not (isinstance(value, float) and not math.isfinite(value))


def _is_list(hint: Any) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    return origin in (collections.abc.Iterable, collections.abc.Sequence, list) or (origin is tuple and ... in args)


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _sentence(function: Callable[..., Any], name: str, hint: Any, arguments: Mapping[str, Any]) -> str:
    value = arguments[name]
    shapes = [f"{other} {list(of.shape)}" for other, of in arguments.items() if other != name and _is_array(of)]
    beside = f" beside {', '.join(shapes)}" if shapes and _is_array(value) else ""
    uncalled = inspect.isroutine(value) and value.__module__.startswith("candax.") and name not in _ADVICE
    advice = f" It is a factory, call it: {value.__name__}(...)." if uncalled else _ADVICE.get(name, "")
    if name == "optimizer" and named(hint) == "an Optimizer":
        advice = " candax.Optimizer(model, tx) makes one of an optax transformation."
    if isinstance(value, dict) and name == "batches":
        advice = " A batch by itself goes into a list."
    if isinstance(value, list | tuple) and name == "labels":
        advice = " Lists become arrays by np.asarray; shorter lists of labels are filled up with -1."
    if _is_array(value) and any(getattr(of, "__name__", "") == "csr_array" for of in _members(hint)):
        advice = f" Wrap it: scipy.sparse.csr_array({name})."
    if _is_array(value) and name in ("margin", "scale"):
        advice = " One that is learned goes into a margin of your own: a function of cx.SampledLogits that gives such."
    if _is_array(value) and str(value.dtype) == "uint32" and "a key of jax.random.key" in named(hint):
        advice = f" One of jax.random.PRNGKey becomes one by jax.random.wrap_key_data({name})."
    owner, _, method = function.__qualname__.rpartition(".")
    owner = type(arguments["self"]).__name__ if owner and "self" in arguments else owner  # it may be a subclass
    label = f"{owner}.{method}".strip(".").removesuffix(".__init__")
    got, mine = described(value), type(value)
    lists = [of for of in _members(hint) if _is_list(of)]
    if lists and mine in (list, tuple):
        each = get_args(lists[0])[0]
        place, one = next(((i, one) for i, one in enumerate(value[:_LOOKED_AT]) if not fits(one, each)), (None, None))
        got = got if place is None else f"{described(one)} at place {place}"
    kinds = {get_origin(of) or of for of in _members(hint)}
    if mine not in kinds and mine.__name__ in {getattr(of, "__name__", "") for of in kinds}:
        got = f"one of {mine.__module__.partition('.')[0]}, which is another class"
    return f"{label}: expected {name} to be {named(hint)}, got {got}{beside}.{advice}"


def _is_array(value: Any) -> Any:
    # Of the type: objects of some classes make any attribute that they are asked for.
    return hasattr(type(value), "dtype") and hasattr(type(value), "shape")


def _is_sparse(value: Any) -> bool:
    sparse = sys.modules.get("scipy.sparse")  # which a sparse matrix has loaded
    return sparse is not None and sparse.issparse(value)


def named(hint: Any) -> str:
    """An annotation in words."""
    if hint in _WORDS:
        return _WORDS[hint]
    if hasattr(hint, "dim_str"):  # of jaxtyping
        kind = hint.__name__.partition("[")[0].rstrip("0123456789")
        if kind == "Key":
            return "a key of jax.random.key"
        return f"an array of {_DTYPES.get(kind, 'numbers')} [{', '.join(hint.dim_str.split())}]"
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, args))
    if len(_members(hint)) > 1:
        return " or ".join(dict.fromkeys(map(named, args)))
    if origin is collections.abc.Callable or hint is collections.abc.Callable:
        return "a function"
    each = args[0] if len(args) == 1 or (origin is tuple and ... in args) else Any
    is_named = inspect.isclass(each) and each is not Any
    of = f" of {_MANY.get(each) or each.__name__}" if is_named else ""
    name = _PLAIN.get(origin) or str(getattr(origin or hint, "__name__", hint))
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}{of}"
