"""Whether rows are finite: neither what cancels nor what is large deceives, and what is left out does not count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax.rows.gradients import all_finite

LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 128), (2, 2, 100), (4, 3, 2)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("numbers", [[np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [LARGEST, np.inf]])
def test_a_number_that_is_not_finite_is_found_where_rows_count(shape, dtype, numbers):
    ids_shape = (2, 2) if shape == (2, 2, 100) else (4,)
    rows = np.ones(shape, np.float32).reshape(4, -1)
    rows[2, : len(numbers)] = numbers[: rows.shape[1]]
    rows = jnp.asarray(rows.reshape(shape), dtype)
    bad = not jnp.isfinite(rows).all()  # of what the type holds: the largest float32 is too large for bfloat16
    others = np.arange(4).reshape(ids_shape) != 2
    finite = jax.jit(all_finite)
    assert bool(finite(rows, jnp.ones(ids_shape, bool))) == (not bad)
    assert finite(rows, jnp.asarray(others))


def test_sums_of_the_largest_numbers_are_finite():
    for width in (0, 1, 2, 127, 128, 1000):
        assert all_finite(jnp.full((3, width), LARGEST), jnp.ones(3, bool))
