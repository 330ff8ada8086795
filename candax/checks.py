"""Checks of arguments that many factories share."""


def check_positive(name: str, value: int | None) -> None:
    """Raises where a number of things is given but is no positive integer."""
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(f"expected {name} to be an integer >= 1, got {value!r}.")
