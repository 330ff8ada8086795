"""First lines that name columns, which are no data."""

import re
from collections.abc import Sequence, Set

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
# The words of a name: as in event_time, unixReviewTime and EVENT_TS.
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ABOUT_TIMES = {
    "units": "s sec secs seconds ms millis us ns utc gmt",
    # Before "time" or "date", what makes of it a duration, or a moment that is not the interaction's.
    "other": "life run running play playing watch watching listen listening read reading view viewing dwell spent "
    "total elapsed response wait waiting travel delivery screen session release publication published birth expiry "
    "expiration registration signup",
    # Of several times the one with such a word is taken: it is a number, the others may be texts.
    "clocks": "unix epoch timestamp ts unixtime",
}
_UNITS, _NO_MOMENTS, _CLOCKS = (frozenset(words.split()) for words in _ABOUT_TIMES.values())


def places_of(fields: Sequence[str], columns: Sequence[str], optional: Sequence[str] = ()) -> tuple[int, ...] | None:
    """Where a first line names these columns; None where it does not name all, and so is a row.

    Capitals and what is no letter do not count, nor does a last "id" or "name" or a type after a colon. A field with a
    digit, such as "user1", names no column. Of several fields with the name of a column it is the first. Where no field
    is called a time, it is the one whose last word is "time", "date", "timestamp" or "ts": event_time, unixReviewTime.

    Args:
        fields: of the line.
        columns: what it must name: "user", "item", "time", "head", "relation", "tail".
        optional: what it may name.

    Returns:
        The place of each column, and of the optional ones that are named.

    Raises:
        ValueError: if several fields may be the time, and none is called so.

    Example:
        >>> places_of(["userId", "movieId", "rating", "timestamp"], ["user", "item"], ["time"])
        (0, 1, 3)
        >>> places_of(["reviewerID", "asin", "overall", "unixReviewTime"], ["user", "item"], ["time"])
        (0, 1, 3)
        >>> places_of(["ann", "book"], ["user", "item"]) is None
        True
    """
    names = [_plain(field) for field in fields]
    found = [next((i for i, name in enumerate(names) if name & _KNOWN[what]), None) for what in (*columns, *optional)]
    if None in found[: len(columns)]:
        return None
    if "time" in optional and found[(at := len(columns) + list(optional).index("time"))] is None:
        found[at] = _time_in(fields, {place for place in found if place is not None})
    return tuple(place for place in found if place is not None)


def _time_in(fields: Sequence[str], taken: Set[int]) -> int | None:
    """The only field that ends in a word for a time, but those taken; None if there is none."""
    parts = {place: _parts(field) for place, field in enumerate(fields) if place not in taken}
    times = [place for place, words in parts.items() if words and words[-1] in _KNOWN["time"]]
    times = [place for place in times if _NO_MOMENTS.isdisjoint(parts[place])]
    clocks = [place for place in times if not _CLOCKS.isdisjoint(parts[place])]
    found = clocks if len(clocks) == 1 else times
    if len(found) > 1:
        names = ", ".join(fields[place] for place in found)
        raise ValueError(
            f"expected one column of times, got {names}: call the one that counts time, or leave others out."
        )
    return found[0] if found else None


def _parts(field: str) -> list[str]:
    """The words of a name in small letters, without a unit at the end; none where it has a digit."""
    words = [part.lower() for part in _PARTS.findall(_name(field))]
    while len(words) > 1 and words[-1] in _UNITS:
        words.pop()
    return words


def _plain(field: str) -> set[str]:
    letters = _NO_LETTERS.sub("", _name(field).lower())
    return {letters} | {letters.removesuffix(ending) for ending in ("id", "name", "s")}


def _name(field: str) -> str:
    """The name without a type behind a colon; nothing where it has a digit, or no type stands there."""
    name, colon, kind = field.partition(":")
    return "" if _DIGIT.search(name) or (colon and kind.strip().lower() not in _TYPES) else name
