"""Checks of arguments that many factories share."""

import numpy as np


def check_positive(name: str, value: int | None) -> None:
    """Raises where a number of things is given but is not an integer of 1 or more."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
        raise ValueError(f"expected {name} to be an integer >= 1, got {value!r}.")
