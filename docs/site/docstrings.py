"""Docstrings as the reference shows them: what stands under ``Example:`` is code, not prose with quotations."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Names the section as griffe does, which then shows it as a session with Python."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Of every module, class and function, once it is read."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
