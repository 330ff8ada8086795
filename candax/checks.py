"""Checks of arguments that many factories share."""

import numpy as np


def check_positive(name: str, value: object, *, optional: bool = False) -> None:
    """Raises where a number of things is not an integer of 1 or more; None is one where it is ``optional``."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"expected {name} to be an integer >= 1{' or None' if optional else ''}, got {value!r}.")
