"""Lines of tab-separated text: fields with line numbers, and errors that name the line."""

import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from candax.data.streams import MODULES, text_lines

_ENDINGS = (".tsv", ".txt", "")
_SHOWN = 60


def read_rows(
    path: str | os.PathLike[str], columns: Sequence[str], *, empty: bool = False
) -> Iterator[tuple[int, list[str]]]:
    r"""The lines of a file, split at tabs.

    Args:
        path: UTF-8 text, plain or .gz, .bz2, .xz, .zst. Empty lines are passed over.
        columns: their names, for errors.
        empty: whether there may be no line.

    Yields:
        The line's number, from 1 on, and its fields, none of them empty.

    Raises:
        ValueError: for a file that is not text, a line with another number of columns, an empty field, or no line at
            all, if not ``empty``; with file and line number.
        OSError: if there is no such file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("ann\tmilk\nbob\ttea\n")
        ...     list(read_rows(path, ["user", "item"]))
        [(1, ['ann', 'milk']), (2, ['bob', 'tea'])]
    """
    path = Path(path)
    what, found = ", ".join(columns), False
    for number, line in text_lines(path):
        if not line:
            continue
        fields = line.split("\t")
        if len(fields) != len(columns):
            raise ValueError(
                f"{path}:{number}: expected {len(columns)} columns separated by tabs ({what}), got {len(fields)}: "
                f"{_show(line)}."
            )
        if not all(fields):
            raise ValueError(f"{path}:{number}: expected no empty column ({what}), got {_show(line)}.")
        found = True
        yield number, fields
    if not found and not empty:
        raise ValueError(f"{path}: expected lines of {what} separated by tabs, got an empty file.")


def find_file(folder: Path, stem: str) -> Path | None:
    """The file of this name in a folder: .tsv, .txt or without an ending, plain or compressed; None if there is none.

    Raises:
        ValueError: if there are several.
    """
    names = [folder / f"{stem}{ending}{packed}" for ending in _ENDINGS for packed in ("", *MODULES)]
    there = [path for path in names if path.is_file()]
    if len(there) > 1:
        raise ValueError(f"expected one file {stem} in {folder}, got {', '.join(path.name for path in there)}.")
    return there[0] if there else None


def name_of(path: str | os.PathLike[str]) -> str:
    """What tables call a data set that was read from this file or folder.

    Example:
        >>> name_of("data/shop.tsv.xz")
        'shop'
    """
    return Path(path).resolve().name.split(".")[0] or "data"


def forms_beside(**names: Sequence[str]) -> list[str]:
    r"""Notes on names of which another one differs in nothing but the Unicode form: names count as they are written.

    Example:
        >>> forms_beside(items=["caf\u00e9", "cafe\u0301", "tea"])
        ["1 items have a name that differs from another one's in its Unicode form alone, such as 'cafe\\u0301'"]
    """
    notes = []
    for what, every in names.items():
        composed = ((name, unicodedata.normalize("NFC", name)) for name in every if not name.isascii())
        others = {name: same for name, same in composed if name != same}
        known = set(every) if others else set()
        if found := [name for name, same in others.items() if same in known]:
            # As they look alike, escapes are shown.
            notes.append(
                f"{len(found):,} {what} have a name that differs from another one's in its Unicode form alone, such as "
                f"{found[0]!a}"
            )
    return notes


def _show(line: str) -> str:
    return repr(line if len(line) <= _SHOWN else line[:_SHOWN] + "...")
