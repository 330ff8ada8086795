"""Tasks: a folder for each, with its data, its models, how they are trained and measured, and its command."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from candax.recipes import (
        extreme as extreme,
        faces as faces,
        links as links,
        retrieval as retrieval,
        words as words,
    )

_ROOMS = ("extreme", "faces", "links", "retrieval", "words")


def __getattr__(name: str) -> Any:
    # Imported when they are asked for, as their commands need much that `import candax` does not load.
    if name in _ROOMS:
        return importlib.import_module(f"candax.recipes.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
