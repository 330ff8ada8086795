"""Metrics as JSON lines, one object a line, in a file that a killed run can continue."""

import json
from pathlib import Path
from typing import Any

from candax.files import naming, replacing


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file's content in one step: readers see the old text or the new, never a part."""
    with replacing(path) as file:
        file.write(text.encode())


class MetricsLog:
    """Appends records to ``path``, after cutting what a killed run wrote beyond the step that it resumes from.

    Args:
        path: of the file, or None to keep the records in memory only.
        resumed_step: records of later steps are removed, as the run will produce them again.
    """

    def __init__(self, path: Path | None, *, resumed_step: int) -> None:
        self._path = path
        self.records: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self.records = [record for record in _complete_records(path) if record["step"] <= resumed_step]
            write_atomically(path, "".join(json.dumps(record) + "\n" for record in self.records))

    def write(self, record: dict[str, Any]) -> None:
        """Adds one record; it is on disk when this returns."""
        self.records.append(record)
        if self._path is not None:
            with naming(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def _complete_records(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    # Whatever follows the last newline was cut off in the middle of a write.
    return [json.loads(line) for line in lines[:-1] if line]
