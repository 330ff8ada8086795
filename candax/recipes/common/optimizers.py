"""Optimizers of several recipes."""

import optax

from candax.alike import made_once
from candax.rows import averaged

# That is 1e-10 outside the root: gradients of rows that start near 0 are that small, and a larger epsilon would damp
# them to nothing, as optax's defaults do (an epsilon of 1e-7, and a sum that starts at 0.1).
_EPSILON_IN_ROOT = 1e-20
_LEAST_DECAY = 1e-3


@made_once
def row_adagrad(learning_rate: float, num_steps: int) -> optax.GradientTransformation:
    """Adagrad whose rate falls linearly to 0, for rows that start near 0 or are seldom used.

    A row's first updates are as large as the rate, however late they come.
    """
    rate = optax.linear_schedule(learning_rate, 0.0, num_steps)
    return optax.adagrad(rate, initial_accumulator_value=0.0, eps=_EPSILON_IN_ROOT)


@made_once
def averaged_adam(learning_rate: float, num_steps: int, decay: float) -> optax.GradientTransformation:
    """Adam (.9, .98) whose rate rises for a twentieth of the steps, then falls by a cosine; with averaged weights.

    Args:
        learning_rate: the highest that is reached.
        num_steps: after which the rate is 0.
        decay: of the average, see ``candax.rows.averaged``; in few steps less, so that a tenth of them is averaged and
            hardly anything of the start is left.
    """
    warm_up = max(1, num_steps // 20)
    # A single step to rise in would be one at the rate 0.
    first = 0.0 if warm_up > 1 else learning_rate
    rate = optax.warmup_cosine_decay_schedule(first, learning_rate, warm_up, max(num_steps, warm_up + 1))
    return averaged(optax.adam(rate, b2=0.98), min(decay, max(_LEAST_DECAY, 1 - 10 / num_steps)))
