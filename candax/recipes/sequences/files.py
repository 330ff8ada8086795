"""Sequences of items from files, split into parts for training, validation and testing."""

import csv
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Int32, Int64

from candax import data
from candax.data.headers import places_of
from candax.data.interactions import Row, interactions_of
from candax.data.streams import check_read_again, open_text, text_lines
from candax.data.tab_separated import forms_beside, name_of
from candax.data.times import EXPECTED_TIME, Times

STDLIB = "python-stdlib"
_HEADER = "A first line may name the columns: user, item and time; others are then left out."


@dataclasses.dataclass(frozen=True, eq=False)
class Sequences:
    """Items of users in order, of which the last ones are held out (leave one out).

    A user's last item is for testing and the one before for validation, as long as one is left before them: users with
    two items have none for validation, users with one have neither. Training uses what comes before the item to be
    predicted: for testing that is all but the last item.

    Attributes:
        name: what tables call it.
        item_names: the most frequent first.
        items: of all users, one after the other.
        offsets: where each user's items begin, and where the last one's end.
        held_out: how many of each user's last items are not for training: 1 when testing, 2 when validating.
        user_names: of each user, where they are known.
        notes: what reading passed over, in sentences for the user.
    """

    name: str
    item_names: tuple[Any, ...]
    items: Int32[np.ndarray, " N"]
    offsets: Int64[np.ndarray, " num_users_plus_1"]
    held_out: int = 1
    user_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def num_items(self) -> int:
        """Classes."""
        return len(self.item_names)

    @property
    def lengths(self) -> Int64[np.ndarray, " num_users"]:
        """Items of each user."""
        return np.diff(self.offsets)

    @property
    def training_ends(self) -> Int64[np.ndarray, " num_users"]:
        """Where the training items of each user end."""
        return self.offsets[1:] - np.clip(self.lengths - 1, 0, self.held_out)

    def counts(self) -> Int64[np.ndarray, "num_items"]:
        """How often each item occurs in the training part."""
        places = ranges(self.offsets[:-1], self.training_ends)
        return np.bincount(self.items[places], minlength=self.num_items)

    def questions(self, split: str) -> "Questions":
        """What is to be predicted in validation or in testing."""
        back, least = {"validation": (2, 3), "test": (1, 2)}[split]
        users = np.flatnonzero(self.lengths >= least)
        ends = self.offsets[1:][users] - back
        return Questions(self.offsets[:-1][users], ends, self.items[ends])


@dataclasses.dataclass(frozen=True, eq=False)
class Questions:
    """Histories, as places within all items, and the item that follows each."""

    starts: Int64[np.ndarray, " n"]
    ends: Int64[np.ndarray, " n"]
    answers: Int32[np.ndarray, " n"]

    def __len__(self) -> int:
        """How many questions there are."""
        return len(self.answers)

    def __getitem__(self, which: "slice | Int[np.ndarray, ' m']") -> "Questions":
        """Some of the questions."""
        return Questions(self.starts[which], self.ends[which], self.answers[which])

    def some(self, number: int) -> "Questions":
        """A random part of the questions, in order and always the same; all of them if there are no more."""
        return self[np.sort(np.random.default_rng(0).permutation(len(self))[:number])]


def ranges(starts: Int64[np.ndarray, " n"], ends: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " total"]:
    """The numbers from each start to before its end, one range after the other.

    Example:
        >>> ranges(np.array([0, 5]), np.array([2, 8])).tolist()
        [0, 1, 5, 6, 7]
    """
    sizes = ends - starts
    return np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


def load(path: str, *, min_count: int = 1) -> Sequences:
    r"""Reads sequences: ``user item item ...`` lines, ``user,item[,time]`` lines, or the latter with tabs.

    The first line decides which: it has a tab, or else a comma, or else spaces. Items with times are sorted by time.
    A first line with tabs or commas may name the columns, such as ``userId,movieId,rating,timestamp``: then user, item
    and time are taken by their names and others are left out. The time may also be called ``event_time`` or
    ``unixReviewTime``, and is a number or a date (``2024-05-01``, ``2024-05-01 10:30:00``); where there is none, lines
    are taken in the file's order.
    Names count as they are written: those that differ in their Unicode form alone are two, which a note says.
    ``python-stdlib`` stands in for purchases, which are not on every machine: the functions of Python's standard
    library are the users, the identifiers that each uses are its items.

    Args:
        path: file (.gz, .bz2, .xz too), or ``python-stdlib``.
        min_count: items that occur less often are left out.

    Returns:
        The sequences.

    Raises:
        ValueError: with file and line, for lines of another kind, or where nothing can be held out.
        OSError: if the file cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "shop.txt")
        ...     _ = path.write_text("ann tea milk tea\nbob milk\n")
        ...     shop = load(str(path))
        >>> [shop.item_names[item] for item in shop.items], shop.counts().tolist()
        (['tea', 'milk', 'tea', 'milk'], [2, 1])
    """
    notes: list[str] = []
    found = data.python_interactions(min_count=min_count) if path == STDLIB else _read(Path(path), min_count, notes)
    if any(found.left_out):
        notes.append(
            f"{found.left_out[0]:,} interactions with items that occur less than {min_count} times are left out, and "
            f"with them {found.left_out[1]:,} users"
        )
    notes += forms_beside(users=found.user_names, items=found.item_names)
    sequences = Sequences(
        found.name, found.item_names, found.items, found.offsets, user_names=found.user_names, notes=tuple(notes)
    )
    if not (sequences.lengths >= 3).any():
        raise ValueError(
            f"{path}: expected users with three items or more, one each to train, to validate and to test on; the "
            f"longest sequence has {sequences.lengths.max()}."
        )
    return sequences


def _read(path: Path, min_count: int, notes: list[str]) -> data.Interactions:
    check_read_again(path)
    number, first = next(((number, line) for number, line in text_lines(path) if line.strip()), (0, ""))
    if not first:
        raise ValueError(f"{path}: expected lines of a user and items, got an empty file.")
    if "\r" in first:
        raise ValueError(f"{path}:{number}: expected lines that end in a line feed, got a carriage return within one.")
    mark = next((mark for mark in "\t," if mark in first), None)
    if mark is None:
        return interactions_of(name_of(path), _by_spaces(path, notes), min_count=min_count)
    where = f"{path}:{number}"
    header = columns_in(first, mark, where)
    if header is not None:
        notes.append(f"{path.name}:{number}: {_told(split_line(first, mark, where), header)}")
    return interactions_of(name_of(path), _by_fields(path, mark, header, notes), min_count=min_count)


def _told(names: Sequence[str], header: Sequence[int]) -> str:
    """What is made of a line that names columns."""
    read = ", ".join(names[place] for place in header)
    others = ", ".join(name for place, name in enumerate(names) if place not in header)
    left_out = f"; left out: {others}" if others else ""
    order = "" if len(header) > 2 else "; no time column: lines are taken in the file's order"
    return f"taken for names of columns, of which are read: {read}{left_out}{order}"


def split_line(line: str, mark: str, where: str) -> list[str]:
    """The fields of a line, for errors ``where``; quotes have a meaning only in lines with commas."""
    if mark == "\t":
        return line.split(mark)
    # With a line break behind it, which a quote that is not closed takes in.
    try:
        fields = next(csv.reader([f"{line}\n"]))
    except csv.Error as error:
        raise _fault(where, error) from error
    _check_closed(fields, where)
    return fields


def _check_closed(fields: Sequence[str], where: str) -> None:
    """Raises ValueError where a field holds a line break: a stray quote takes in all lines up to the next one."""
    broken = next((field for field in fields if "\n" in field), None)
    if broken is not None:
        raise ValueError(
            f"{where}: expected users, items and times without line breaks, got {broken[:60]!r}: a quote is opened and "
            "not closed in this line. Close it, or write a quote within quotes twice."
        )


def columns_in(line: str, mark: str, where: str) -> tuple[int, ...] | None:
    """Where a first line names user, item and perhaps time; None where it is a row.

    Example:
        >>> columns_in('"item_id","user_id"', ",", "shop.csv:1"), columns_in("ann,tea", ",", "shop.csv:1")
        ((1, 0), None)
    """
    fields = split_line(line, mark, where)
    try:
        return places_of(fields, ("user", "item"), ("time",))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _by_spaces(path: Path, notes: list[str]) -> Iterator[Row]:
    users: dict[str, int] = {}
    empty = 0
    for number, line in text_lines(path):
        user, *items = line.split() or [""]
        if not user:
            empty += 1
            continue
        if not items:
            raise ValueError(f"{path}:{number}: expected a user and items separated by spaces, got {user!r} alone.")
        if user in users:
            raise ValueError(f"{path}:{number}: expected one line per user, got {user!r} as in line {users[user]}.")
        users[user] = number
        yield from (Row(user, item) for item in items)
    _note_empty(path, empty, notes)


def _note_empty(path: Path, number: int, notes: list[str]) -> None:
    if number:
        notes.append(f"{path.name}: {number:,} empty lines are passed over")


def _by_fields(path: Path, mark: str, header: tuple[int, ...] | None, notes: list[str]) -> Iterator[Row]:
    """Rows of a file with tabs or commas; a ``header`` says where what is."""
    columns = f"user{mark}item or user{mark}item{mark}time" if header is None else "as many columns as the first line"
    width, is_empty, long, times, empty = None, True, list[int](), Times(), 0
    with open_text(path) as lines:
        for number, last, fields in _records(path, mark, lines):
            if not mark.join(fields).strip():
                empty += 1
                continue
            where = f"{path}:{number}"
            first, width = width is None, len(fields) if width is None else width
            if first and header is not None:
                continue
            kept = fields if header is None else [fields[place] for place in header if place < len(fields)]
            if last > number:
                _check_closed(kept, where)
                long.append(number)
            if len(fields) != width or len(kept) not in (2, 3) or not all(kept):
                shown = mark.join(fields)
                raise ValueError(f"{where}: expected {columns}, alike in all lines, got {shown[:60]!r}. {_HEADER}")
            time = times(kept[2]) if len(kept) == 3 else None
            if time is None and len(kept) == 3:
                raise ValueError(f"{where}: expected {EXPECTED_TIME}; got {kept[2]!r}. {_HEADER}")
            is_empty = False
            yield Row(kept[0], kept[1], time)
    if is_empty:
        raise ValueError(f"{path}: expected rows of a user and an item after the names of columns, found none.")
    if long:
        notes.append(f"{path.name}: {len(long)} rows have line breaks within quotes, the first in line {long[0]}")
    _note_empty(path, empty, notes)


def _records(path: Path, mark: str, lines: Iterable[str]) -> Iterator[tuple[int, int, list[str]]]:
    """The fields of each row, with the numbers of the lines in which it begins and ends."""
    reader = csv.reader(lines) if mark == "," else csv.reader(lines, delimiter=mark, quoting=csv.QUOTE_NONE)
    number = 1
    try:
        for fields in reader:
            yield number, reader.line_num, fields
            number = reader.line_num + 1
    except csv.Error as error:
        raise _fault(f"{path}:{number}", error) from error


def _fault(where: str, error: csv.Error) -> ValueError:
    advice = " Is a quote opened in this line and not closed?" if "limit" in str(error) else ""
    return ValueError(f"{where}: expected fields separated by commas or tabs, but: {error}.{advice}")
