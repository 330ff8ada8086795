"""What an optimizer by rows refuses at construction: transformations that are not elementwise."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from candax.base import State
from candax.rows.missed import ExactState

# Larger than optax.adafactor's threshold for factoring (128), else it would pass as elementwise here and factor later.
_PROBE_SHAPE = (160, 130)
# Digests of the programs that passed.
_ELEMENTWISE: set[bytes] = set()


def collects(name: str) -> str:
    """What is said of a transformation that collects gradients."""
    return (
        f"rowwise: the transformation collects gradients over several steps ({name}), so rows that a later step does "
        "not use would lose theirs. Join gradients of several batches by candax.accumulate, or cut a batch into parts "
        "by fit(accumulate=)."
    )


def refuse_collectors(transformation: optax.GradientTransformation) -> None:
    """Refuses accumulation over steps, as the gradient of a row that misses the last of k steps would be lost; and an
    exact optimizer within another.
    """
    collectors = (optax.MultiStepsState, optax.ApplyEvery)
    state = jax.eval_shape(transformation.init, jax.ShapeDtypeStruct((5, 3), jnp.float32))
    is_refused = lambda node: isinstance(node, (*collectors, ExactState))  # noqa: E731
    for node in jax.tree.leaves(state, is_leaf=is_refused):
        if isinstance(node, ExactState):
            raise ValueError(
                "rowwise: expected an exact optimizer alone, got one in a chain, which does not know where rows have "
                "gone. Coupled (L2) decay has no exact form: take the weight_decay of candax.rows.exact_adamw. Clip by "
                "clip_norm= of candax.Optimizer, and give the rate to the optimizer."
            )
        if is_refused(node):
            raise ValueError(collects(type(node).__name__))


def check_elementwise(transformation: optax.GradientTransformation) -> None:
    """Runs the transformation on a small table and on a part of its rows: elementwise means equal on the part."""
    rng = np.random.default_rng(0)
    part = np.sort(rng.permutation(_PROBE_SHAPE[0])[:40])
    # Row 0 is no part of the part: one bad number there must change nothing elsewhere (apply_if_finite would).
    part = part[part > 0]
    table = jnp.asarray(rng.normal(size=_PROBE_SHAPE), jnp.float32)
    scale = 10.0 ** rng.integers(-3, 3, size=(3, _PROBE_SHAPE[0], 1))
    grads = jnp.asarray(rng.normal(size=(3, *_PROBE_SHAPE)) * scale, jnp.float32).at[1, 0, 0].set(jnp.nan)

    @jax.jit  # so that it is traced once for all steps
    def step(table: Array, state: State, grads: Array) -> tuple[Array, State]:
        updates, state = transformation.update(grads, state, table)
        return optax.apply_updates(table, updates), state

    def train(table: Array, grads: Array) -> list[Array]:
        state, tables = jax.jit(transformation.init)(table), [table]
        for of_step in grads:
            new, state = step(tables[-1], state, of_step)
            tables.append(new)
        return tables[1:]

    try:
        traced = jax.jit(lambda table, grads: (train(table, grads), train(table[part], grads[:, part]))).trace(
            table, grads
        )
    except (TypeError, AttributeError) as error:
        raise ValueError(
            "rowwise: the transformation is not elementwise: it needs more than gradients, state and parameters (a "
            f"line search or lookahead, say): {error}. Use adam, adagrad, sgd and the like."
        ) from error
    # Compiling takes most of the time, and what tables of one optimizer do is mostly the same program.
    program = hashlib.sha256(str(traced.jaxpr).encode())
    for constant in traced.jaxpr.consts:
        program.update(np.asarray(constant).tobytes())
    if program.digest() in _ELEMENTWISE:
        return
    wholes, parts = traced.lower().compile()(table, grads)
    for whole, rows in zip(wholes, parts, strict=True):
        if not np.allclose(whole[part], rows, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise ValueError(
                "rowwise: the transformation is not elementwise: on a part of the rows it gives another update than on "
                "the whole table. Take optax.clip_by_global_norm out of its chain: clip_norm= of candax.Optimizer "
                "clips, once over all gradients. Norms of whole arrays (clipping, lamb, lars), factored or matrix "
                "moments (adafactor, sm3, muon), noise and apply_if_finite do. Use adam, adagrad, sgd and the like, or "
                "what is as a dense optimizer (candax.rows.exact_adamw), for tables alone by tables= of "
                "candax.Optimizer, so that other parameters keep yours."
            )
    _ELEMENTWISE.add(program.digest())
