"""Runs of equal values in what is sorted."""

from jax import numpy as jnp
from jaxtyping import Array, Bool, Shaped


def starts_of_runs(values: Shaped[Array, "*rows n"]) -> Bool[Array, "*rows n"]:
    """True where a value differs from the one before it, and at the first.

    Example:
        >>> starts_of_runs(jnp.array([2, 2, 7, 9, 9])).tolist()
        [True, False, True, True, False]
    """
    return jnp.concatenate([jnp.ones_like(values[..., :1], bool), values[..., 1:] != values[..., :-1]], axis=-1)
