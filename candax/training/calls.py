"""Batches on the device, one for each call of the compiled step, or several where a call does several steps."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from candax.training.feed import Fed, on_host

T = TypeVar("T")
# The batches of a call, and their arrays on the device: one batch, or several of them stacked.
Call = tuple[tuple[Fed, ...], Any]


def calls(
    feed: Iterator[Fed],
    check: Callable[[Fed], None],
    place: Callable[[Any], Any],
    steps_per_call: int = 1,
    done: int = 0,
    ends: Callable[[int, Fed], bool] = lambda step, fed: False,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Call | Exception]:
    """The batches of each call, checked on the host and copied to the device; an error becomes the last item.

    A call ends at each multiple of ``steps_per_call`` of the run's steps, so that a run that goes on makes the same
    calls. What is cut shorter than that is done step by step: a call of every length would be a program of its own.

    Args:
        feed: batches with their places.
        check: raises for batches that the run cannot use.
        place: brings arrays to the device.
        steps_per_call: the most steps of a call.
        done: steps of the run before these batches.
        ends: ``ends(step, fed)``: whether something is to be done after this step, so that a call has to end there.
        stopped: whether no more calls are wanted; asked before each batch is waited for.
    """
    waiting: list[Fed] = []

    def placed() -> Iterator[Call]:
        if 1 < len(waiting) == steps_per_call and jax.tree.leaves(waiting[0].batch):
            yield tuple(waiting), place(jax.tree.map(_stacked, *(fed.batch for fed in waiting)))
        else:
            for fed in waiting:
                yield (fed,), place(fed.batch)
        waiting.clear()

    try:
        for step, item in enumerate(_on_host(feed, check), done + 1):
            if isinstance(item, Exception):
                yield from placed()
                raise item
            if waiting and _shapes(item) != _shapes(waiting[-1]):
                yield from placed()
            waiting.append(item)
            if step % steps_per_call == 0 or ends(step, item):
                yield from placed()
            if stopped():
                return
        yield from placed()
    except Exception as error:  # raised by the loop, which saves first and tells other processes
        yield error


def as_here(items: Iterator[T]) -> Iterator[T]:
    """Items that a thread of their own may take as this one would.

    What ``with jax.enable_x64(True)`` and ``with jax.default_device(...)`` say holds in their own thread alone, and in
    another one arrays of 64 bits would become such of 32.
    """
    x64, device = jax.config.jax_enable_x64, jax.config.jax_default_device  # type: ignore[attr-defined]

    def taken() -> Iterator[T]:
        # Never left; the thread ends with its items. Left after each item, they would undo a ``with`` of the items' own
        # that lasts from one to the next; left as this generator is closed, they would change whichever thread does so.
        jax.enable_x64(x64).__enter__()
        jax.default_device(device).__enter__()
        yield from items

    return taken()


def _on_host(feed: Iterator[Fed], check: Callable[[Fed], None]) -> Iterator[Fed | Exception]:
    try:
        for fed in feed:
            host = fed._replace(batch=on_host(fed.batch, fed.name))
            check(host)
            yield host
    except Exception as error:
        yield error


def _stacked(*leaves: Any) -> Any:
    return (jnp if isinstance(leaves[0], jax.Array) else np).stack(leaves)


def _shapes(fed: Fed) -> Any:
    return jax.tree.structure(fed.batch), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(fed.batch)]
