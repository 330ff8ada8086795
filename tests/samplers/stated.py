"""What a sampler states of every class."""

import jax
import jax.numpy as jnp
import numpy as np

from candax.base import Query, Sampler, State


def expected_counts(sampler: Sampler, query: Query, state: State | None = None) -> np.ndarray:
    """The expected count of every class after one draw, per group: float64 [groups, num_classes].

    ``state``: None: that of ``init``.
    """
    state = sampler.init(jax.random.key(0), query.classes) if state is None else state
    candidates = sampler.sample(state, jax.random.key(1), query)
    number = query.classes.num_classes
    ids = jnp.broadcast_to(jnp.arange(number, dtype=jnp.int32), (len(candidates.ids), number))
    return np.exp(np.asarray(sampler.log_expected_count(state, candidates, ids, query), np.float64))
