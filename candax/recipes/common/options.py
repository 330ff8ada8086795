"""Options of an interface in Python: some of the settings of a command, by their names."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import numpy as np

from candax.checks import described
from candax.recipes.common.settings import Settings

S = TypeVar("S", bound=Settings)


def with_options(kind: type[S], allowed: Sequence[str], given: Mapping[str, Any]) -> S:
    """The settings of a command with some of them given, checked.

    Args:
        kind: of settings.
        allowed: names of those that may be given.
        given: by name.

    Raises:
        ValueError: for other names, types or sizes.

    Example:
        >>> from candax.recipes.links.command import LinksSettings
        >>> with_options(LinksSettings, ("dim", "epochs"), {"dim": 8}).dim
        8
        >>> with_options(LinksSettings, ("dim", "epochs"), {"dims": 8})
        Traceback (most recent call last):
        ...
        ValueError: expected options among dim, epochs, got dims.
    """
    from beartype.door import is_bearable

    if strange := [name for name in given if name not in allowed]:
        raise ValueError(f"expected options among {', '.join(allowed)}, got {', '.join(strange)}.")
    hints = get_type_hints(kind)
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    for name, value in values.items():
        wide = float(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not is_bearable(value, hints[name]) and not is_bearable(wide, hints[name]):
            wanted = getattr(hints[name], "__name__", str(hints[name]).replace("typing.", ""))
            raise ValueError(f"expected {name} to be {wanted}, got {described(value)}.")
    settings = dataclasses.replace(kind(), **values)
    settings.check()
    return settings
