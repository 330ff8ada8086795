"""The laws of samplers that look at the program: what its functions hold, and how its cost grows."""

import dis
import functools
import types
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from candax.base import Classes, Query, Sampler
from candax.testing.bench import Bench, Case
from candax.testing.broken import LawBroken
from candax.testing.problems import make_query


@runtime_checkable
class Checked(Protocol):
    """A bench with a sampler, or a retriever made into one."""

    sampler: Sampler
    case: Case


def check_closure(bench: Checked) -> None:
    """Samplers are closed over static hyperparameters, never over arrays: those would be constants of every step."""
    functions = bench.sampler._asdict()
    del functions["facts"]
    found = [path for name, function in functions.items() for path in _arrays_held(function, name, set())]
    if found:
        raise LawBroken(f"arrays are closed over: {', '.join(found)}")


def _arrays_held(value: Any, path: str, seen: set[int]) -> list[str]:
    if isinstance(value, jax.Array | np.ndarray):
        return [path]
    if id(value) in seen:
        return []
    seen.add(id(value))
    inner: dict[str, Any] = {}
    if isinstance(value, functools.partial):
        inner = {"func": value.func, "args": value.args, "keywords": value.keywords}
    elif isinstance(value, types.FunctionType):
        inner = {"defaults": value.__defaults__, "kwdefaults": value.__kwdefaults__}
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        inner |= {name: cell.cell_contents for name, cell in cells}
        # Arrays alone: what else is global belongs to modules, and these hold each other.
        read = {name: value.__globals__.get(name) for name in _globals_read(value.__code__)}
        inner |= {name: entry for name, entry in read.items() if isinstance(entry, jax.Array | np.ndarray)}
    elif isinstance(value, types.MethodType):
        inner = {"self": value.__self__, "func": value.__func__}
    elif hasattr(value, "__wrapped__"):
        inner = {"wrapped": value.__wrapped__}
    elif isinstance(value, dict):
        inner = {str(key): entry for key, entry in value.items()}
    elif isinstance(value, list | tuple):
        inner = {str(i): entry for i, entry in enumerate(value)}
    elif not isinstance(value, type | types.ModuleType | jax.sharding.Mesh):
        inner = getattr(value, "__dict__", {})
    return [found for name, entry in inner.items() for found in _arrays_held(entry, f"{path}.{name}", seen)]


def _globals_read(code: types.CodeType) -> set[str]:
    """The names of globals that a function and the functions inside it read."""
    read = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return read.union(*(_globals_read(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def check_cost(bench: Checked) -> None:
    """Law 5: the scratch of a draw and of an update is the same at 10^5 and at 10^6 classes."""
    if bench.case.cost_grows:
        return

    sampler = bench.sampler

    def scratch(num_classes: int) -> int:
        shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
        arrays = Classes(jnp.zeros((0, 4)), jnp.zeros(0), jnp.zeros(0), jnp.int32(0))
        described = (shape((num_classes, 4)), shape((num_classes,)), shape((num_classes,)), jnp.int32(num_classes))
        classes = jax.tree.unflatten(jax.tree.structure(arrays), described)
        key = jax.eval_shape(jax.random.key, 0)
        query = jax.eval_shape(make_query, key, classes)
        state = jax.eval_shape(sampler.init, key, classes)

        def step(state: Any, key: jax.Array, query: Query) -> Any:
            candidates = sampler.sample(state, key, query)
            counts = sampler.log_expected_count(state, candidates, candidates.ids, query)
            # As in training, new rows depend on what was drawn: so an update never runs before its draw.
            rows = jnp.full((8, 4), jnp.sum(counts))
            return candidates, counts, sampler.update(state, key, query, jnp.arange(8, dtype=jnp.int32), rows)

        analysis = jax.jit(step, donate_argnums=0).lower(state, key, query).compile().memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    small, large = scratch(10**5), scratch(10**6)
    if small != large:
        raise LawBroken(
            f"a draw and an update take {small:,} bytes of scratch at 100,000 classes and {large:,} at 1,000,000; if "
            f"it is meant to look at all classes, check it with cost_grows=True"
        )


def check_share(bench: Bench) -> None:
    """What ``share(2)`` makes draws about half as many samples, so that two shards draw about as many as the whole.

    Asked where slots are alike: samplers that return what they find, or the labels of the batch, have slots for all of
    it in each shard.
    """
    sampler = bench.sampler
    if sampler.share is None or not sampler.facts.alike:
        return
    try:
        part = sampler.share(2)
    except ValueError:
        return  # Its numbers are odd.

    def slots(sampler: Sampler) -> int:
        def draw(key: jax.Array, query: Query) -> Any:
            return sampler.sample(sampler.init(key, query.classes), key, query).ids

        return int(jax.eval_shape(draw, jax.random.key(0), bench.query).shape[1])

    of_part, of_whole = slots(part), slots(sampler)
    # Half, or somewhat more where it rounds up.
    if of_whole > 1 and of_part > 0.75 * of_whole:
        raise LawBroken(
            f"the sampler draws {of_whole} samples and share(2), that of one of two shards, {of_part} where half as "
            f"many are expected"
        )
