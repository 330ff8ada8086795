"""Optimizers of several recipes."""

import optax

# Outside the root 1e-10: gradients of rows that start near 0 are that small, and a larger one would damp them to
# nothing, as optax' defaults of 1e-7 and a sum that starts at 0.1 do.
_EPSILON_IN_ROOT = 1e-20


def row_adagrad(learning_rate: float, num_steps: int) -> optax.GradientTransformation:
    """Adagrad whose rate falls linearly to 0, for rows that start near 0 or are seldom used.

    A row's first updates are as large as the rate, however late they come.
    """
    rate = optax.linear_schedule(learning_rate, 0.0, num_steps)
    return optax.adagrad(rate, initial_accumulator_value=0.0, eps=_EPSILON_IN_ROOT)
