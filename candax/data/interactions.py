"""Who took what, in which order: interactions from tab-separated files, and the next item as the class to predict."""

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64
from scipy.sparse import csr_array

from candax.checks import check_positive, checked
from candax.data.examples import Dataset, Examples
from candax.data.headers import places_of
from candax.data.tab_separated import find_file, name_of, read_rows

Split: TypeAlias = Literal["last", "time", "file"]
_COLUMNS = "user, item[, time]"


class Row(NamedTuple):
    """One interaction."""

    user: str
    item: str
    time: float | None = None
    test: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Interactions:
    """The items of every user, in order.

    Args:
        name: what tables and pictures call it.
        user_names: one name per user.
        item_names: one name per item, the most frequent first.
        items: the items of all users, user by user.
        offsets: where each user's items begin in ``items``, and where those of the last user end.
        times: of each interaction, or None.
        is_test: whether each interaction came from a test file; None: there was no such file.
    """

    name: str
    user_names: tuple[str, ...]
    item_names: tuple[str, ...]
    items: Int32[np.ndarray, " N"]
    offsets: Int64[np.ndarray, " num_users_plus_1"]
    times: Float64[np.ndarray, " N"] | None
    is_test: Bool[np.ndarray, " N"] | None

    def __len__(self) -> int:
        """The number of interactions."""
        return len(self.items)

    @property
    def num_users(self) -> int:
        """The number of users, all of whom have an item."""
        return len(self.user_names)

    @property
    def num_items(self) -> int:
        """The number of items, each of which is a class."""
        return len(self.item_names)


@checked
def interactions(
    path: str | os.PathLike[str], *, min_count: int = 1, header: bool = False, name: str | None = None
) -> Interactions:
    r"""Reads interactions: a file of lines ``user<tab>item`` or ``user<tab>item<tab>time``, or a folder of two.

    A first line such as ``user<tab>item`` or ``user_id<tab>item_id<tab>timestamp`` names the columns and is no row.
    A user's items are in the order of their times; without times, or at equal times, in the order of the file. A folder
    holds ``train.tsv`` and ``test.tsv`` (or .txt, or compressed): the test file continues the training file's users.

    Args:
        path: file or folder; text in UTF-8, plain or .gz, .bz2, .xz, .zst.
        min_count: items that occur less often are left out, and so are users left without an item.
        header: whether the first line names the columns, in words that are not known.
        name: of the data set; None: that of the file or folder.

    Returns:
        The interactions.

    Raises:
        ValueError: with file and line number, for a file that is empty or not text, another number of columns, a time
            that is not a finite number, a user or an item of the test file that the training file does not have.
        OSError: if a file cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "shop.tsv")
        ...     _ = path.write_text("ann\tmilk\t2\nbob\ttea\t1\nann\ttea\t1\n")
        ...     shop = interactions(path)
        >>> [shop.item_names[i] for i in shop.items], shop.offsets.tolist()
        (['tea', 'milk', 'tea'], [0, 2, 3])
    """
    path = Path(path)
    name = name or name_of(path)
    if not path.is_dir():
        return interactions_of(name, _rows(path, header=header), min_count=min_count)
    files = {stem: find_file(path, stem) for stem in ("train", "test")}
    train_file, test_file = files["train"], files["test"]
    if train_file is None or test_file is None:
        raise ValueError(f"expected train.tsv and test.tsv in {path}, or the path of one file; a file is missing.")
    train = list(_rows(train_file, header=header))
    users, items = {row.user for row in train}, {row.item for row in train}
    test = []
    for number, row in _numbered(test_file, header=header):
        for what, known, value in (("user", users, row.user), ("item", items, row.item)):
            if value not in known:
                raise ValueError(
                    f"{test_file}:{number}: {what} {value!r} is not in {train_file.name}: expected the test file to "
                    "continue the users of the training file, with its items. Leave such lines out, or give one file."
                )
        test.append(row._replace(test=True))
    if not test:
        raise ValueError(f"{test_file}: expected interactions, got names of columns alone.")
    return interactions_of(name, train + test, min_count=min_count)


@checked
def interactions_of(name: str, rows: Iterable[Row], *, min_count: int = 1) -> Interactions:
    """Makes interactions from rows; see ``interactions``.

    Raises:
        ValueError: if nothing is left, or none of the test rows; if only some rows have a time, or one that is not
            finite.

    Example:
        >>> shop = interactions_of("shop", [Row("ann", "tea"), Row("ann", "milk"), Row("bob", "tea")], min_count=2)
        >>> shop.item_names, shop.num_users
        (('tea',), 2)
    """
    check_positive("min_count", min_count)
    every = list(rows)
    counts = Counter(row.item for row in every)
    kept = [row for row in every if counts[row.item] >= min_count]
    if not kept:
        raise ValueError(
            f"{name}: expected interactions with items that occur {min_count} times or more, found none among "
            f"{len(every)}. Give more, or lower the minimum count."
        )
    timed = {row.time is not None for row in kept}
    if len(timed) > 1:
        raise ValueError(f"{name}: expected all interactions to have a time, or none; got both.")
    user_ids = {user: i for i, user in enumerate(dict.fromkeys(row.user for row in kept))}
    item_names = sorted({row.item for row in kept}, key=lambda item: (-counts[item], item))
    item_ids = {item: i for i, item in enumerate(item_names)}
    users = np.array([user_ids[row.user] for row in kept], np.int64)
    items = np.array([item_ids[row.item] for row in kept], np.int32)
    is_test = np.array([row.test for row in kept], bool)
    if any(row.test for row in every) and not is_test.any():
        raise ValueError(
            f"{name}: expected test interactions with items that occur {min_count} times or more, found none. Give "
            "more, or lower the minimum count."
        )
    times = np.array([row.time for row in kept], np.float64) if timed == {True} else None
    if times is not None and not np.isfinite(times).all():
        raise ValueError(f"{name}: expected times that are finite numbers, got {times[~np.isfinite(times)][0]}.")
    keys = (is_test, users) if times is None else (times, is_test, users)
    order = np.lexsort(keys)  # stable: equals stay in the order of the file
    offsets = np.concatenate([[0], np.cumsum(np.bincount(users, minlength=len(user_ids)))]).astype(np.int64)
    return Interactions(
        name,
        tuple(user_ids),
        tuple(item_names),
        items[order],
        offsets,
        None if times is None else times[order],
        is_test[order] if is_test.any() else None,
    )


@checked
def next_items(
    interactions: Interactions,
    *,
    split: Split | None = None,
    test_share: float = 0.1,
    max_history: int = 50,
    recency: float = 0.5,
) -> Dataset:
    """Predict a user's next item from those before it: one example for every item but a user's first.

    *Features* are the items of the history, the ``max_history`` latest; an item d places back has the value
    d^-recency, and the values of an item at several places add up. *The label* is the next item. Features and classes
    have the same ids, so that an encoder can share the head's table (``candax.models.HistoryTower``). Every example
    stores its history: memory grows by 8 bytes times interactions times ``max_history``, at most.

    Args:
        interactions: any.
        split: what is for testing. "last": each user's last item, if there is one before it. "time": the interactions
            after the instant by which a share of ``1 - test_share`` of them had happened. "file": those of the test
            file. None: "file" where there is a test file, else "last". A history holds all that the user had before,
            test items too.
        test_share: the share for testing, with "time".
        max_history: the most items of a history.
        recency: how quickly older items lose weight; 0: all items of a history count alike.

    Returns:
        A data set with names and one label per example.

    Raises:
        ValueError: for numbers out of range, a split that the interactions do not allow, or one that leaves no example
            for training or for testing.

    Example:
        >>> shop = interactions_of("shop", [Row("ann", item) for item in ("tea", "milk", "tea", "jam")])
        >>> dataset = next_items(shop)
        >>> dataset.class_names, dataset.test.labels.toarray().astype(int).tolist()
        (('tea', 'jam', 'milk'), [[0, 1, 0]])
        >>> dataset.test.features.toarray().round(2).tolist()
        [[1.5800000429153442, 0.0, 0.7099999785423279]]
    """
    if max_history < 1 or not 0 < test_share < 1 or not (0 <= recency < math.inf):
        raise ValueError(
            f"expected max_history >= 1, test_share within 0..1 and recency >= 0, got {max_history}, {test_share}, "
            f"{recency}."
        )
    starts = np.repeat(interactions.offsets[:-1], np.diff(interactions.offsets))
    at = np.arange(len(interactions))
    held_out = _held_out(interactions, split, test_share)
    usable = at > starts
    parts = [np.flatnonzero(usable & ~held_out), np.flatnonzero(usable & held_out)]
    for which, part in zip(("training", "testing"), parts, strict=True):
        if not len(part):
            raise ValueError(
                f"{interactions.name}: expected an item with another one before it for {which}, found none among "
                f"{len(interactions)} interactions of {interactions.num_users} users. Give longer histories or "
                "another split."
            )
    train, test = (_pairs(interactions, part, starts, max_history, recency) for part in parts)
    return Dataset(interactions.name, train, test, interactions.item_names, interactions.item_names)


def _held_out(interactions: Interactions, split: Split | None, test_share: float) -> Bool[np.ndarray, " N"]:
    if split is None:
        split = "last" if interactions.is_test is None else "file"
    if split == "last":
        last = np.zeros(len(interactions), bool)
        last[interactions.offsets[1:] - 1] = True
        return last
    if split == "file":
        if interactions.is_test is None:
            raise ValueError(f"{interactions.name}: split 'file' needs a test file; use 'last' or 'time'.")
        return interactions.is_test
    if split != "time":
        raise ValueError(f"expected split 'last', 'time' or 'file', got {split!r}.")
    if interactions.times is None:
        raise ValueError(f"{interactions.name}: split 'time' needs a third column, the time; use 'last'.")
    return interactions.times > np.quantile(interactions.times, 1 - test_share, method="inverted_cdf")


def _pairs(
    interactions: Interactions,
    at: Int64[np.ndarray, " n"],
    starts: Int64[np.ndarray, " N"],
    max_history: int,
    recency: float,
) -> Examples:
    """The examples whose labels are the interactions at these places."""
    sizes = np.minimum(at - starts[at], max_history)
    rows = np.repeat(np.arange(len(at)), sizes)
    back = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    values = back.astype(np.float64) ** -recency
    shape = (len(at), interactions.num_items)
    features = csr_array((values.astype(np.float32), (rows, interactions.items[at[rows] - back])), shape=shape)
    features.sum_duplicates()
    labels = csr_array((np.ones(len(at), bool), interactions.items[at], np.arange(len(at) + 1)), shape=shape)
    return Examples(features, labels)


def _rows(path: Path, *, header: bool) -> Iterable[Row]:
    return (row for _, row in _numbered(path, header=header))


def _numbered(path: Path, *, header: bool) -> Iterator[tuple[int, Row]]:
    """The rows of a file with the numbers of their lines; a first line may name the columns, in another order too."""
    places = None
    first = not header
    for number, fields in read_rows(path, (2, 3), _COLUMNS, header=header):
        places = places_of(fields, ("user", "item"), ("time",)) if first else places
        if not (first and places):
            yield number, _row(path, number, [fields[place] for place in places] if places else fields)
        first = False


def _row(path: Path, number: int, fields: list[str]) -> Row:
    if len(fields) == 2:
        return Row(fields[0], fields[1])
    try:
        time = math.nan if "_" in fields[2] else float(fields[2])  # Python reads 1_0 as 10
    except ValueError:
        time = math.nan
    if not math.isfinite(time):
        raise ValueError(
            f"{path}:{number}: expected a time that is a finite number in the third column, got {fields[2]!r}. A "
            "first line that names the columns needs header=True, or in commands names such as user, item and time."
        )
    return Row(fields[0], fields[1], time)
