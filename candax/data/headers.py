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


def names_columns(fields: Sequence[str], columns: Sequence[str]) -> bool:
    """Whether the fields of a first line are names of these columns, and so no row.

    Capitals and what is no letter do not count, nor does a last "id" or "name" or a type after a colon.

    Args:
        fields: of the line.
        columns: what they would name: "user", "item", "time", "head", "relation", "tail".

    Example:
        >>> names_columns(["userId", "product_id"], ["user", "item"])
        True
        >>> names_columns(["user_id:token", "item_id:token", "timestamp:float"], ["user", "item", "time"])
        True
        >>> names_columns(["ann", "book"], ["user", "item"])
        False
    """
    if len(fields) != len(columns):
        return False
    return all(_plain(field) & _KNOWN[column] for field, column in zip(fields, columns, strict=True))


def _plain(field: str) -> set[str]:
    letters = _NO_LETTERS.sub("", field.partition(":")[0].lower())
    return {letters} | {letters.removesuffix(ending) for ending in ("id", "name", "s")}
