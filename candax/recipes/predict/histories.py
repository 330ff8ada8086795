"""Histories of users, in the forms that `candax sequences` is trained on, and the items that come next."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from candax.data.times import EXPECTED_TIME, Times
from candax.recipes.predict.lines import Answer, Source, answered, in_batches
from candax.recipes.sequences.files import columns_in, split_line
from candax.recipes.sequences.recommender import SequenceRecommender


class History(NamedTuple):
    """A user's items in order."""

    user: str
    items: list[str]


def answers(
    found: SequenceRecommender, source: Source, k: int, notes: Counter[str], *, keep_seen: bool = False
) -> Iterator[list[Answer]]:
    """The items that come next for each user, likeliest first; see ``histories`` for the lines.

    Items that the run does not know are left out of a history; a user without any known item gets the most popular
    items, whose scores are their shares of all items. Both are counted.

    Raises:
        ValueError: with file and line, for lines of another kind.
    """
    for batch in in_batches(histories(source, notes)):
        ids = [found.known(history.items) for history in batch]
        unknown = sum(len(history.items) - len(known) for history, known in zip(batch, ids, strict=True))
        notes["items unknown to the run, left out of histories"] += unknown
        notes["users without a known item, answered by the most popular items"] += sum(not known for known in ids)
        best = found.best(ids, k, exclude_seen=not keep_seen)
        yield answered((history.user for history in batch), best.ids, best.scores, found.items)


def histories(source: Source, notes: Counter[str]) -> Iterator[History]:
    """Reads ``user item item ...`` lines, or ``user,item[,time]`` lines, or the latter with tabs.

    The first line decides which: it has a tab, or else a comma, or else spaces. With tabs or commas, all lines of a
    user must stand together; they are sorted by time where there is one. So only one user is held in memory at a time.
    There a first line may name the columns, which is noted; others than user, item and time are then left out.

    Raises:
        ValueError: with file and line, for lines of another kind, or a user who comes again.
    """
    lines = source.texts()
    first = next(lines)
    mark = next((mark for mark in "\t," if mark in first[1]), None)
    if mark is None:
        return _by_spaces(source, itertools.chain([first], lines))
    where = f"{source.path}:{first[0]}"
    header, width = columns_in(first[1], mark, where), len(split_line(first[1], mark, where))
    if header is not None:
        notes["lines that name columns"] += 1
        if len(header) < 3:
            notes["files without a column of times: lines are taken in the order of the file"] += 1
    else:
        lines = itertools.chain([first], lines)
    return _by_fields(source, lines, mark, header, width)


def _by_spaces(source: Source, lines: Iterator[tuple[int, str]]) -> Iterator[History]:
    for number, text in lines:
        user, *items = text.split()
        if not items:
            raise source.wrong(number, "a user and items separated by spaces", text)
        yield History(user, items)


def _by_fields(
    source: Source, lines: Iterator[tuple[int, str]], mark: str, header: tuple[int, ...] | None, width: int
) -> Iterator[History]:
    """Histories of lines that have as many fields as the first one; a ``header`` says which of them is what."""
    expected = f"user{mark}item or user{mark}item{mark}time, alike in all lines"
    if header is not None:
        expected = f"{width} columns as in the line that names them, none of user, item and time empty"
    user: str | None = None
    rows: list[tuple[float, str]] = []
    times = Times()
    # Hashes of the users who are done: they take less memory than names.
    done: set[int] = set()
    for number, text in lines:
        every = split_line(text, mark, f"{source.path}:{number}")
        fields = every if header is None else [every[place] for place in header if place < len(every)]
        if len(every) != width or len(fields) not in (2, 3) or not all(fields):
            raise source.wrong(number, expected, text)
        if fields[0] != user:
            if user is not None:
                yield History(user, _in_order(rows))
                done.add(hash(user))
            user, rows = fields[0], []
            if hash(user) in done:
                raise source.wrong(number, "the lines of a user to stand together (sort the file by users)", text)
        time = times(fields[2]) if len(fields) == 3 else 0.0
        if time is None:
            raise source.wrong(number, EXPECTED_TIME, text)
        rows.append((time, fields[1]))
    if user is None:
        raise source.empty()
    yield History(user, _in_order(rows))


def _in_order(rows: list[tuple[float, str]]) -> list[str]:
    return [item for _, item in sorted(rows, key=lambda row: row[0])]
