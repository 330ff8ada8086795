"""How long calls take on this machine, alone or by turns, and the step that ``fit`` compiles as such a call."""

from collections.abc import Callable, Hashable, Mapping
from time import perf_counter, process_time
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float64

from candax.training.trainer import Graph, LossFunction, compiled_step

K = TypeVar("K", bound=Hashable)


def timed(
    calls: Mapping[K, Callable[[int], Any]], rounds: int, warm: int = 1
) -> dict[K, Float64[np.ndarray, "rounds 2"]]:
    """Milliseconds of calls: on the clock, and of processor time.

    Each is called once in every round, with the round's number: what else the machine does meets all alike. The first
    ``warm`` rounds, which compile, do not count.
    """
    times: dict[K, list[tuple[float, float]]] = {name: [] for name in calls}
    for i in range(warm + rounds):
        for name, call in calls.items():
            start = perf_counter(), process_time()
            jax.block_until_ready(call(i))
            times[name].append((perf_counter() - start[0], process_time() - start[1]))
    return {name: 1e3 * np.array(of[warm:]) for name, of in times.items()}


def milliseconds(call: Callable[[], Any], repeats: int) -> Float64[np.ndarray, " repeats"]:
    """Milliseconds on the clock of some calls, after one that compiles."""
    return timed({"": lambda i: call()}, repeats)[""][:, 0]


def in_place(program: Callable[[Any, Any], tuple[Any, Any]], state: Any) -> Callable[[Any], Any]:
    """A function of a batch that keeps the state of ``program(state, batch) -> (state, out)``, which donates it."""

    def call(batch: Any) -> Any:
        nonlocal state
        state, out = program(state, batch)
        return out

    return call


def compiled_by_fit(nodes: Any, loss_fn: LossFunction, batch: Any) -> tuple[Callable[[Any], Any], Any]:
    """The step of a model and its optimizer that ``fit`` compiles, without any dispatch, and its program.

    Their arrays cannot be used after the first call.
    """
    graph, arrays = nnx.split(nodes)
    compiled = compiled_step(loss_fn, 1).lower(Graph(graph), arrays, batch).compile()
    return in_place(compiled, arrays), compiled
