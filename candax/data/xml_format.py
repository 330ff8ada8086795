"""The lines of the Extreme Classification Repository's text format.

The first line is ``points features labels``; every other line is an example, ``label,label id:value id:value``. An
example without labels starts with a space. Two parsers agree on every text: one takes thousands of lines at once and
gives up at the first sign of trouble; the other goes line by line and names the trouble.

scikit-learn's ``load_svmlight_file``, which reads all lines but the header, is not used. It leaves out an example
without labels and features, so that all later ones get another number; accepts nan, labels of -1 and 7.5 and repeated
labels; refuses ids that are not in rising order; and none of its errors names a line. Both are equally fast (22 MB per
second of processor time).
"""

import codecs
import re
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32, Int64, UInt8

MAX_ID = 2**31 - 1
_NEWLINE, _COLON = b"\n"[0], b":"[0]
_SEPARATES = np.isin(np.arange(256), list(b"\n ,:"))
_ID = re.compile(rb"-?[0-9]{1,100}")
_VALUE = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# What is parsed quickly: no token is long, and none is looked at twice.
_LINES = re.compile(rb"(?:(?:ID(?:,ID)*+)?+(?: ++(?:ID:[0-9.eE+-]{1,32}+)?+)*+\n)*+".replace(b"ID", rb"[0-9]{1,18}+"))
_LONGEST_TOKEN = 32
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)


class Header(NamedTuple):
    """What the first line states; without examples, the bounds of lines that have no such line, as for predictions."""

    points: int
    features: int
    labels: int


class Block(NamedTuple):
    """Consecutive examples: ids in sorted order within an example, and how many of them each example has."""

    label_ids: Int32[np.ndarray, " labels"]
    label_counts: Int64[np.ndarray, " examples"]
    feature_ids: Int32[np.ndarray, " features"]
    feature_values: Float32[np.ndarray, " features"]
    feature_counts: Int64[np.ndarray, " examples"]


def parse_header(line: bytes) -> Header:
    """Reads ``points features labels``.

    Raises:
        ValueError: If these are not three integers, or the ids would not fit into 31 bits.

    Example:
        >>> parse_header(b"2 5 3")
        Header(points=2, features=5, labels=3)
    """
    parts = line.removeprefix(codecs.BOM_UTF8).split()
    if len(parts) != 3 or not all(re.fullmatch(rb"[0-9]{1,18}", part) for part in parts):
        raise ValueError(f"expected a header of three integers, 'points features labels'; got {_show(line)}")
    header = Header(*map(int, parts))
    if not 1 <= header.features <= MAX_ID or not 1 <= header.labels <= MAX_ID:
        raise ValueError(f"expected 1 to {MAX_ID} features and labels in the header; got {_show(line)}")
    return header


def parse_block(text: bytes, header: Header, name: str, first_line: int) -> Block:
    r"""Parses complete lines, quickly if all is well.

    Args:
        text: Lines, each ended by a newline.
        header: The bounds of the ids.
        name: The file, for errors.
        first_line: The number that the first line of ``text`` has in the file, from 1, for errors.

    Returns:
        One example per line.

    Raises:
        ValueError: At the first faulty line, with file and line number.

    Example:
        >>> block = parse_block(b"2,0 4:0.5 1:2\n 3:1\n", Header(2, 5, 3), "train.txt", 2)
        >>> block.label_ids, block.label_counts
        (array([0, 2], dtype=int32), array([2, 0]))
        >>> block.feature_ids, block.feature_counts
        (array([1, 4, 3], dtype=int32), array([2, 1]))
    """
    block = parse_quickly(text, header)
    return parse_line_by_line(text, header, name, first_line) if block is None else block


def parse_line_by_line(text: bytes, header: Header, name: str, first_line: int) -> Block:
    """As ``parse_block``, slowly."""
    labels: list[list[int]] = []
    features: list[list[tuple[int, float]]] = []
    for number, line in enumerate(text[:-1].split(b"\n"), first_line):
        try:
            line_labels, line_features = _parse_line(line, header)
        except ValueError as error:
            raise ValueError(f"{name}:{number}: {error}") from None
        labels.append(sorted(line_labels))
        features.append(sorted(line_features))
    return Block(
        np.array([i for ids in labels for i in ids], dtype=np.int32),
        np.array([len(ids) for ids in labels], dtype=np.int64),
        np.array([i for pairs in features for i, _ in pairs], dtype=np.int32),
        np.array([value for pairs in features for _, value in pairs], dtype=np.float32),
        np.array([len(pairs) for pairs in features], dtype=np.int64),
    )


def parse_quickly(text: bytes, header: Header) -> Block | None:
    """As ``parse_block`` with array operations, or None where the text needs a closer look."""
    if not _LINES.fullmatch(text):
        return None
    # Room behind the last token for what is read of all tokens, of the length of the longest.
    data = np.frombuffer(text + bytes(_LONGEST_TOKEN), dtype=np.uint8)
    # What a token is follows from the separators around it.
    ends = np.flatnonzero(_SEPARATES[data])
    after = data[ends]
    starts = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - starts
    feature = after == _COLON
    value = np.concatenate(([False], feature[:-1]))
    label = (sizes > 0) & ~feature & ~value
    label_ids = _integers(data, starts[label], sizes[label])
    feature_ids = _integers(data, starts[feature], sizes[feature])
    values = _floats(data, starts[value], sizes[value])
    if values is None:
        return None
    is_newline = after == _NEWLINE
    rows = np.cumsum(is_newline) - is_newline
    sorted_labels = _sort(rows[label], label_ids, header.labels)
    sorted_features = _sort(rows[feature], feature_ids, header.features)
    if sorted_labels is None or sorted_features is None:
        return None
    lines = int(is_newline.sum())
    return Block(
        label_ids[sorted_labels].astype(np.int32),
        np.bincount(rows[label], minlength=lines),
        feature_ids[sorted_features].astype(np.int32),
        values[sorted_features],
        np.bincount(rows[feature], minlength=lines),
    )


def _parse_line(line: bytes, header: Header) -> tuple[list[int], list[tuple[int, float]]]:
    head, *rest = line.split(b" ")
    if b":" in head:
        raise ValueError(f"expected labels 'id,id' at the start, or a space for no labels; got {_show(head)}")
    labels = [_id(part, header.labels, "label", header) for part in head.split(b",")] if head else []
    features = []
    for part in rest:
        if not part:  # several spaces separate tokens as one does
            continue
        feature_id, colon, value = part.partition(b":")
        if not colon:
            raise ValueError(f"expected features 'id:value' after the labels; got {_show(part)}")
        features.append((_id(feature_id, header.features, "feature", header), _value(value, feature_id)))
    for what, ids in (("label", labels), ("feature", [i for i, _ in features])):
        if len(set(ids)) < len(ids):
            twice = next(i for n, i in enumerate(ids) if i in ids[:n])
            raise ValueError(f"expected distinct {what}s in an example; got {what} {twice} twice: remove one")
    return labels, features


def _id(text: bytes, size: int, what: str, header: Header) -> int:
    if not _ID.fullmatch(text):
        raise ValueError(f"expected an integer as {what} id; got {_show(text)}")
    number = int(text)
    if text.startswith(b"-") or number >= size:
        known = "by the header" if header.points else "as in training"
        raise ValueError(f"expected a {what} id from 0 to {size - 1}, {known}; got {_show(text)}")
    return number


def _value(text: bytes, feature_id: bytes) -> float:
    number = float(text) if _VALUE.fullmatch(text) else None
    if number is None and not _NOT_FINITE.fullmatch(text):
        raise ValueError(f"expected a number as value of feature {_show(feature_id)}; got {_show(text)}")
    with np.errstate(over="ignore"):
        if number is None or not np.isfinite(np.float32(number)):
            raise ValueError(f"expected a finite float32 as value of feature {_show(feature_id)}; got {_show(text)}")
    return number


def _show(text: bytes) -> str:
    shown = text.decode("utf-8", errors="replace")
    return repr(shown if len(shown) <= 60 else shown[:57] + "...")


def _integers(
    data: UInt8[np.ndarray, "bytes"], starts: Int[np.ndarray, " n"], sizes: Int[np.ndarray, " n"]
) -> Int64[np.ndarray, " n"]:
    """The tokens as integers, digit by digit for all at once."""
    numbers = np.zeros(len(starts), dtype=np.int64)
    for place in range(int(sizes.max(initial=0))):
        digits = data[starts + place].astype(np.int64) - ord("0")
        numbers = np.where(place < sizes, numbers * 10 + digits, numbers)
    return numbers


def _floats(
    data: UInt8[np.ndarray, "bytes"], starts: Int[np.ndarray, " n"], sizes: Int[np.ndarray, " n"]
) -> Float32[np.ndarray, " n"] | None:
    """The tokens as numbers, rounded to float64 and then to float32; None if one is not a finite number."""
    longest = int(sizes.max(initial=1))
    places = np.arange(longest)
    inside: Bool[np.ndarray, "n longest"] = places < sizes[:, None]
    characters = data[starts[:, None] + places] * inside
    try:
        numbers = characters.view(f"S{longest}")[:, 0].astype(np.float64)
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        values = numbers.astype(np.float32)
    return values if np.isfinite(values).all() else None


def _sort(
    rows: Int[np.ndarray, " n"], ids: Int64[np.ndarray, " n"], size: int
) -> Int64[np.ndarray, " n"] | slice | None:
    """The index that sorts the ids within their rows; None if an id is too large or occurs twice in a row."""
    if ids.max(initial=0) >= size:
        return None
    keys = rows * np.int64(size) + ids
    if (np.diff(keys) > 0).all():
        return slice(None)
    order = np.argsort(keys, kind="stable")
    return order if (np.diff(keys[order]) > 0).all() else None
