"""Functions of samplers, called outside a program, run as one program: op by op each operation is one of its own."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from candax.base import Sampler, no_update


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, through ``jax.jit`` where no argument is traced already."""
    program = jax.jit(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs)))
        return (function if traced else program)(*args, **kwargs)

    return call


def compile_samplers() -> None:
    """Makes every sampler that is built from now on with compiled functions."""
    new = Sampler.__new__

    def make(cls: type, *args: Any, **kwargs: Any) -> Sampler:
        sampler = new(cls, *args, **kwargs)
        functions = {
            name: getattr(sampler, name) for name in ("init", "sample", "log_expected_count", "refresh", "update")
        }
        kept = {name: compiled(function) for name, function in functions.items() if function is not no_update}
        return sampler._replace(**kept)

    Sampler.__new__ = make
