"""How a sampler or retriever is divided among shards: its factory is called again, with the shard's part."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from candax.alike import made_once
from candax.base import Retriever, Sampler
from candax.checks import described

P = ParamSpec("P")
Made = TypeVar("Made", Sampler, Retriever)


def divisible(*numbers: str) -> Callable[[Callable[P, Made]], Callable[P, Made]]:
    """Sets ``share`` of what a factory makes: it calls the factory again with the arguments ``numbers`` divided.

    Samplers and retrievers among the arguments are divided by their own ``share``. A retriever also gets its
    ``settings`` here: the arguments of its factory.
    What is made of the same arguments is the same, see ``made_once``.

    Args:
        numbers: names of arguments that count samples of a candidate set, or parts of an index, over all classes.
    """

    def of_factory(factory: Callable[P, Made]) -> Callable[P, Made]:
        signature = inspect.signature(factory)

        @functools.wraps(factory)
        def make(*args: P.args, **kwargs: P.kwargs) -> Made:
            made = factory(*args, **kwargs)
            given = signature.bind(*args, **kwargs)
            passed = dict(given.arguments)

            def share(number: int) -> Made:
                arguments = {name: _divided(name, value, number, name in numbers) for name, value in passed.items()}
                return once(**arguments)

            # No field of its own: by its name a sampler is no other one.
            setattr(share, "made_by", _call(factory, args, kwargs))  # noqa: B010
            if isinstance(made, Sampler):
                return made._replace(share=share)
            given.apply_defaults()
            return made._replace(share=share, settings=dict(given.arguments))

        once: Callable[..., Made] = made_once(make)
        return once

    return of_factory


def _call(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = [_shown(value) for value in args] + [f"{name}={_shown(value)}" for name, value in kwargs.items()]
    return f"{factory.__name__}({', '.join(given)})"


def _shown(value: Any) -> str:
    if isinstance(value, Sampler | Retriever):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value) if isinstance(value, str | int | float | None) else described(value)


def _divided(name: str, value: Any, number: int, counts: bool) -> Any:
    if isinstance(value, Sampler | Retriever):
        if value.share is None:
            raise ValueError(f"expected a {name} that can be divided among shards, got one without share.")
        return value.share(number)
    if isinstance(value, list | tuple) and value and all(isinstance(part, Sampler) for part in value):
        return [_divided(name, part, number, counts) for part in value]
    if not counts or value is None:
        return value
    if isinstance(value, int) and value % number:
        raise ValueError(
            f"expected a {name} that {number} shards divide, as it is the number over all of them; got {value}."
        )
    return value // number if isinstance(value, int) else value / number
