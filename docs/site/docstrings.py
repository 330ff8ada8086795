"""Docstrings as the reference shows them: what stands under ``Example:`` is code, and a source is one sentence."""

import re
from typing import Any

import griffe


class Sections(griffe.Extension):
    """Names examples as griffe does, which shows them as a session with Python; it would cut a source at its line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Of every module, class and function, once it is read."""
        if obj.docstring:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            text = re.sub(r"^Source: (.*(?:\n +\S.*)*)", _source, text, flags=re.MULTILINE)
            obj.docstring.value = text


def _source(found: re.Match[str]) -> str:
    return f"*Source:* {' '.join(found[1].split())}"
