"""First lines that name columns, which are no data."""

import re
from collections.abc import Sequence

_NAMES = {
    "user": "user uid customer client buyer visitor session account reviewer member",
    "item": "item iid product article movie book song track artist business asin sku",
    "time": "time timestamp date datetime unixtime ts",
    "head": "head h subject subj s source src",
    "relation": "relation rel r predicate pred p edge",
    "tail": "tail t object obj o target dst",
}
_KNOWN = {what: frozenset(names.split()) for what, names in _NAMES.items()}
_NO_LETTERS = re.compile(r"[^a-z]")
_DIGIT = re.compile(r"\d")
# What may stand after a column's name and a colon, as in RecBole's files.
_TYPES = frozenset(["token", "token_seq", "float", "float_seq", "int", "integer", "str", "string"])


def places_of(fields: Sequence[str], columns: Sequence[str], optional: Sequence[str] = ()) -> tuple[int, ...] | None:
    """Where a first line names these columns; None where it does not name all, and so is a row.

    Capitals and what is no letter do not count, nor does a last "id" or "name" or a type after a colon. A field with a
    digit, such as "user1", names no column. Of several fields with the name of a column it is the first.

    Args:
        fields: of the line.
        columns: what it must name: "user", "item", "time", "head", "relation", "tail".
        optional: what it may name.

    Returns:
        The place of each column, and of the optional ones that are named.

    Example:
        >>> places_of(["userId", "movieId", "rating", "timestamp"], ["user", "item"], ["time"])
        (0, 1, 3)
        >>> places_of(["ann", "book"], ["user", "item"]) is None
        True
    """
    names = [_plain(field) for field in fields]
    found = [next((i for i, name in enumerate(names) if name & _KNOWN[what]), None) for what in (*columns, *optional)]
    needed = found[: len(columns)]
    return None if None in needed else tuple(place for place in found if place is not None)


def _plain(field: str) -> set[str]:
    name, colon, kind = field.lower().partition(":")
    if _DIGIT.search(name) or (colon and kind.strip() not in _TYPES):
        return set()
    letters = _NO_LETTERS.sub("", name)
    return {letters} | {letters.removesuffix(ending) for ending in ("id", "name", "s")}
