"""How a sampler is divided among shards: its factory is called again, with the shard's part of the samples."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from candax.base import Sampler

P = ParamSpec("P")


def divisible(*numbers: str) -> Callable[[Callable[P, Sampler]], Callable[P, Sampler]]:
    """Gives the samplers of a factory their ``share``: the factory's arguments ``numbers`` are divided.

    Samplers among the arguments are divided themselves.

    Args:
        numbers: names of arguments that count samples of a candidate set, over all classes.
    """

    def of_factory(factory: Callable[P, Sampler]) -> Callable[P, Sampler]:
        signature = inspect.signature(factory)

        @functools.wraps(factory)
        def make(*args: P.args, **kwargs: P.kwargs) -> Sampler:
            sampler = factory(*args, **kwargs)
            given = signature.bind(*args, **kwargs)

            def share(number: int) -> Sampler:
                arguments = {
                    name: _divided(name, value, number, name in numbers) for name, value in given.arguments.items()
                }
                return make(**arguments)  # type: ignore[call-arg]

            return sampler._replace(share=share)

        return make

    return of_factory


def _divided(name: str, value: Any, number: int, counts: bool) -> Any:
    if isinstance(value, Sampler):
        if value.share is None:
            raise ValueError(f"expected a {name} that can be divided among shards, got a sampler without share.")
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
