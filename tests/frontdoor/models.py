"""Small models that the tests of the front door share, and comparisons of their gradients with dense ones."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import candax as cx

NUM, DIM = 40, 8
UNIFORM = cx.samplers.uniform(12)
# As many distinct classes as there are: all of them in every draw, whatever the key.
EVERYTHING = cx.samplers.uniform(NUM, replacement=False)
SAMPLERS = {
    "uniform": UNIFORM,
    "lsh": cx.samplers.lsh(
        hash=cx.samplers.simhash(), num_tables=6, num_hashes=2, budget=8, capacity=4, fill="uniform", num_fill=4
    ),
    "ivf_bq": cx.samplers.ivf_bq(6, num_centers=4, hm_num=16, num_kept=12),
    "learned_unigram": cx.samplers.learned_unigram(8, memory=32, uniform_share=0.5),
}


class Batch(NamedTuple):
    """Tokens, one label per token, and which of them count."""

    tokens: Any
    labels: Any
    where: Any


def batch(step: int = 0, size: int = 4, length: int = 6) -> Batch:
    """Small ids are frequent, so that many stand in a batch several times."""
    rng = np.random.default_rng(step)
    tokens, labels = np.floor(NUM ** rng.random((2, size, length))).astype(np.int32) - 1
    return Batch(jnp.asarray(tokens), jnp.asarray(labels), jnp.asarray(rng.random((size, length)) < 0.7))


def stacked(number: int, **sizes: int) -> Batch:
    """Several batches with a leading axis."""
    return jax.tree.map(lambda *parts: jnp.stack(parts), *[batch(step, **sizes) for step in range(number)])


class LM(nnx.Module):
    """A table of words, a layer, and a head, which may share the table."""

    def __init__(
        self,
        *,
        sampler: cx.Sampler | None = UNIFORM,
        loss: Any = None,
        tied: bool = False,
        dropout: bool = False,
        batch_norm: bool = False,
        **head: Any,
    ) -> None:
        rngs = nnx.Rngs(0)
        self.words = cx.Embed(NUM, DIM, rngs=rngs)
        self.layer = nnx.Linear(DIM, DIM, rngs=rngs)
        self.norm = nnx.BatchNorm(DIM, rngs=rngs) if batch_norm else None
        self.dropout = nnx.Dropout(0.3, rngs=rngs) if dropout else None
        self.head = cx.Head(
            NUM, DIM, table=self.words if tied else None, sampler=sampler, loss=loss, **{"rngs": rngs, **head}
        )

    def __call__(self, tokens: Any) -> Any:
        hidden = nnx.gelu(self.layer(self.words(tokens)))
        if self.norm is not None:
            hidden = self.norm(hidden)
        return hidden if self.dropout is None else self.dropout(hidden)


@cache
def _made(options: tuple[tuple[str, Any], ...]) -> LM:
    return LM(**dict(options))


def lm(**options: Any) -> LM:
    """An ``LM``, of each kind equal ones: copies of one that is made once."""
    return nnx.clone(_made(tuple(sorted(options.items()))))


def mean_loss(model: LM, batch: Batch) -> Any:
    return model.head.loss(model(batch.tokens), batch.labels)


def masked_loss(model: LM, batch: Batch) -> Any:
    return model.head.loss(model(batch.tokens), batch.labels, where=batch.where)


def scattered(entry: Any) -> np.ndarray:
    """The gradient of a whole table; a dense one as it is."""
    if not isinstance(entry, cx.rows.RowGradients):
        return np.asarray(entry)
    ids = np.asarray(entry.ids)
    whole = np.zeros((entry.num_rows, *entry.rows.shape[1:]), entry.rows.dtype)
    whole[ids[ids < entry.num_rows]] = entry.rows[ids < entry.num_rows]
    return whole


def by_name(state: nnx.State) -> dict[str, Any]:
    """Arrays of a state by their paths, as row gradients are named."""
    leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(state))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def named(grads: cx.Gradients) -> dict[str, np.ndarray]:
    """All gradients by path, of tables too."""
    return by_name(grads.params) | {name: scattered(entry) for name, entry in grads.rows.items()}


def assert_close(got: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-6) -> None:
    """Tables without a gradient have one of zeros."""
    assert set(got) <= set(expected)
    for name, of_name in expected.items():
        np.testing.assert_allclose(
            got.get(name, np.zeros(of_name.shape)), of_name, rtol=tolerance, atol=tolerance, err_msg=name
        )


def assert_equal_trees(got: Any, expected: Any) -> None:
    """Bit for bit; keys too."""
    leaves, structure = jax.tree.flatten(got)
    others, other_structure = jax.tree.flatten(expected)
    assert structure == other_structure
    for one, other in zip(leaves, others, strict=True):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(one, other)


@cache
def gradients(loss: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compiled, by rows and dense, once for all tests that use a loss."""
    return nnx.jit(cx.value_and_grad(loss)), nnx.jit(nnx.value_and_grad(loss))


def assert_dense_gradients(model: nnx.Module, loss: Callable[..., Any], *args: Any) -> cx.Gradients:
    """Row gradients are those of ``nnx.value_and_grad`` on a copy, and the model changes like the copy.

    Returns:
        The row gradients.
    """
    dense = nnx.clone(model)
    by_rows, by_arrays = gradients(loss)
    value, grads = by_rows(model, *args)
    expected_value, expected = by_arrays(dense, *args)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    assert np.isfinite(value)
    assert_close(named(grads), by_name(expected))
    assert any(np.any(gradient) for gradient in named(grads).values())
    others = [nnx.state(of, nnx.Not(nnx.Param)) for of in (model, dense)]
    for one, other in zip(*[jax.tree.leaves(nnx.to_pure_dict(state)) for state in others], strict=True):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    return grads
