"""Settings of a command by their names: options of an interface in Python, and what a run has written of itself."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np

from candax.checks import described, fits, named
from candax.recipes.common.settings import Settings

_OPTION = re.compile(r"--([a-z][a-z0-9-]*)")
S = TypeVar("S", bound=Settings)


def with_options(kind: type[S], allowed: Sequence[str], given: Mapping[str, Any]) -> S:
    """The settings of a command with some of them given, checked.

    Args:
        kind: the class of the settings.
        allowed: names of the settings that may be given.
        given: the given settings by name.

    Raises:
        ValueError: for other names, or values of another type or out of range.

    Example:
        >>> from candax.recipes.links.command import LinksSettings
        >>> with_options(LinksSettings, ("dim", "epochs"), {"dim": 8}).dim
        8
        >>> with_options(LinksSettings, ("dim", "epochs"), {"dims": 8})
        Traceback (most recent call last):
        ...
        ValueError: expected options among dim, epochs, got dims.
        >>> with_options(LinksSettings, ("batch_size",), {"batch_size": 7})
        Traceback (most recent call last):
        ...
        ValueError: expected an even number (two questions for each triple), got batch_size 7.
    """
    if strange := [name for name in given if name not in allowed]:
        raise ValueError(f"expected options among {', '.join(allowed)}, got {', '.join(strange)}.")
    hints = get_type_hints(kind)
    for name, value in given.items():
        if not fits(value, hints[name]):
            raise ValueError(f"expected {name} to be {named(hints[name])}, got {described(value)}.")
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    settings = kind(**values)
    try:
        settings.check()
    except ValueError as error:  # which names them as the command line does
        raise ValueError(_OPTION.sub(lambda found: found[1].replace("-", "_"), str(error))) from None
    return settings


def saved_settings(kind: type[S], path: Path, **now: Any) -> S:
    """The settings that a run has written into a JSON file.

    Args:
        kind: the class of the settings.
        path: of the file.
        now: settings that are others than they were, such as the folder of a run that has moved.

    Raises:
        ValueError: if the file holds anything else, such as settings that this version does not have.
        OSError: if it cannot be read.
    """
    expected = f"{path}: expected the settings of a run as JSON, got"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{expected} another file: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{expected} {described(found)}.")
    if strange := sorted(found.keys() - {field.name for field in dataclasses.fields(kind)}):
        raise ValueError(f"{expected} {', '.join(strange)} too, which this version does not know: update candax.")
    hints = get_type_hints(kind)
    values = {**found, **now}
    for name, value in values.items():
        if not fits(value, hints[name]):
            raise ValueError(f"{expected} {described(value)} as {name}, which is to be {named(hints[name])}.")
    return kind(**values)
