"""What is known about items or users: text and numbers from files, and the part of a tower that reads them."""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Float64, Int, Int32
from rich.console import Console

import candax as cx
from candax.data.streams import text_lines
from candax.data.times import number_of
from candax.files import digest_of
from candax.recipes.common.search import padded
from candax.rows.tables import Constant

_WORD = re.compile(r"\w+")
# The most words read of an item or user, and how many items or users must have a word for it to be kept.
_MOST_WORDS, _LEAST = 32, 2
# The least standard deviation of a column, as a share of its largest value.
_LEAST_DEVIATION = 1e-15


class Features(NamedTuple):
    """Features of items or of users, in the order of their numbers.

    Attributes:
        words: numbers of the distinct words of each item or user, padded with -1.
        numbers: standardised to mean 0 and deviation 1 over those that are trained on; 0 where a number is missing.
        num_words: size of the vocabulary.
    """

    words: Int32[np.ndarray, "n W"]
    numbers: Float32[np.ndarray, "n K"]
    num_words: int

    @property
    def digest(self) -> str:
        """Digest of all of it."""
        return digest_of(self.words, self.numbers)


class Known(NamedTuple):
    """Features of items and users; None where there is no file of them."""

    items: Features | None = None
    users: Features | None = None

    @property
    def digest(self) -> list[str | None]:
        """Digests of both."""
        return [None if part is None else part.digest for part in self]


NOTHING = Known()


def read_table(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """The header of a tab-separated file, and the columns of each id.

    Raises:
        ValueError: with file and line, for lines of another width, an id that comes twice, a file without columns.
        OSError: if it cannot be read.
    """
    lines = ((number, line.split("\t")) for number, line in text_lines(path) if line.strip())
    header = next(lines, (0, [""]))[1]
    if len(header) < 2:
        raise ValueError(f"{path}:1: expected a header of an id and columns separated by tabs, got {header[0][:60]!r}.")
    found: dict[str, list[str]] = {}
    for number, fields in lines:
        if len(fields) != len(header):
            raise ValueError(f"{path}:{number}: expected {len(header)} columns as in the header, got {len(fields)}.")
        if fields[0] in found:
            raise ValueError(f"{path}:{number}: expected one line for each id, got {fields[0]!r} again.")
        found[fields[0]] = fields[1:]
    return header, found


def read_features(path: Path, names: tuple[str, ...], trained: Bool[np.ndarray, " n"], what: str) -> Features:
    """Reads a tab-separated file: a header line, then an id and its columns in each line.

    A column is numeric if all that stands in it can be read as numbers, and text otherwise; where most can, this is
    said. Empty fields, nan and inf are missing numbers. The same word in two
    columns counts as two words. A word is kept if two items or users in training have it, and of each item or user the
    first 32 kept words are read. An item or user without a line has no words, and numbers at the mean. Ids that the
    data do not have are left out. How many lines, columns, words and left-out ids there are is printed, and whether the
    header begins with an id.

    Args:
        path: of the file.
        names: of the items or users.
        trained: which of them are trained on; vocabulary, mean and standard deviation come from these.
        what: "items" or "users", for messages.

    Returns:
        Features of each name.

    Raises:
        ValueError: with file and line, for lines of another width, an id that comes twice, a file without columns or
            without any known id.
        OSError: if it cannot be read.
    """
    header, table = read_table(path)
    places = {name: place for place, name in enumerate(names)}
    rows = {places[name]: fields for name, fields in table.items() if name in places}
    if not rows:
        raise ValueError(f"{path}: expected ids of {what} that the data have, such as {names[0]!r}, found none.")
    columns = [[row[column] for row in rows.values()] for column in range(len(header) - 1)]
    numeric = [_numbers(column) for column in columns]
    for name, values, read in zip(header[1:], columns, numeric, strict=True):
        _say_what_is_odd(f"{path}: column {name}", values, read)
    at = np.array(list(rows))
    numbers = np.zeros((len(names), sum(column is not None for column in numeric)), np.float32)
    for to, column in enumerate(column for column in numeric if column is not None):
        numbers[at, to] = _standardised(column, trained[at])
    texts = [column for column, read in zip(columns, numeric, strict=True) if read is None]
    words, num_words = _words(texts, at, len(names), trained)
    Console().print(
        f"{path}: {len(rows):,} of {len(names):,} {what}, {numbers.shape[1]} columns of numbers, {len(texts)} of text "
        f"with {num_words:,} words; {len(table) - len(rows):,} ids that the data do not have are left out",
        soft_wrap=True,
        markup=False,
    )
    if header[0] in places:
        note = f"{path}:1: taken for names of columns, although {header[0]!r} is one of the {what}"
        Console().print(note, soft_wrap=True, markup=False)
    return Features(words, numbers, num_words)


def _numbers(column: list[str]) -> Float64[np.ndarray, " n"] | None:
    """A column as numbers, NaN where it is empty; None if it is text."""
    try:
        found = np.array([number_of(value) if value.strip() else np.nan for value in column], np.float64)
    except ValueError:
        return None
    found[~np.isfinite(found)] = np.nan
    return found if np.isfinite(found).any() else None


def _say_what_is_odd(where: str, column: list[str], read: Float64[np.ndarray, " n"] | None) -> None:
    """Prints how many values are missing though something stands there, or why a column of numbers is none."""
    given = [value for value in column if value.strip()]
    wrong = [value for value in given if not _is_number(value)]
    odd = 0 if read is None else len(given) - int(np.isfinite(read).sum())
    note = ""
    if odd:
        note = f"{odd:,} values that are not finite are taken as missing"
    elif read is None and 0 < 2 * len(wrong) < len(given):
        shown = f"{len(wrong):,} of {len(given):,} values are no numbers, such as {wrong[0]!r}"
        note = f"text, as {shown}; empty ones are missing"
    if note:
        Console().print(f"{where}: {note}", soft_wrap=True, markup=False)


def _is_number(value: str) -> bool:
    try:
        number_of(value)
    except ValueError:
        return False
    return True


def _standardised(column: Float64[np.ndarray, " n"], trained: Bool[np.ndarray, " n"]) -> Float32[np.ndarray, " n"]:
    """In float64 up to the end: times in seconds differ less from each other than float32 can tell."""
    given = np.isfinite(column)
    known = column[trained & given]
    if not len(known):
        return np.zeros(len(column), np.float32)
    size = np.abs(known).max() or 1.0
    known = known / size
    with np.errstate(over="ignore"):
        # What differs by rounding alone is one value.
        scaled = (column / size - known.mean()) / max(float(known.std()), _LEAST_DEVIATION)
    # A value far outside of what is trained on tells no more than one at its edge.
    return np.clip(np.where(given, scaled, 0.0), -10, 10).astype(np.float32)


def _words(
    texts: list[list[str]], at: Int[np.ndarray, " n"], size: int, trained: Bool[np.ndarray, " size"]
) -> tuple[Int32[np.ndarray, "size W"], int]:
    """The numbers of the words of each item or user, and the size of the vocabulary."""
    bags: list[dict[tuple[int, str], None]] = [{} for _ in at]
    for column, values in enumerate(texts):
        for bag, value in zip(bags, values, strict=True):
            bag.update(dict.fromkeys((column, word) for word in _WORD.findall(value.lower())))
    counts = Counter(word for bag, place in zip(bags, at, strict=True) if trained[place] for word in bag)
    kept = sorted(word for word, count in counts.items() if count >= _LEAST)
    numbers = {word: number for number, word in enumerate(kept)}
    lists: list[list[int]] = [[]] * size
    for place, bag in zip(at.tolist(), bags, strict=True):
        lists[place] = [numbers[word] for word in bag if word in numbers][:_MOST_WORDS]
    return padded(lists), len(kept)


class FeaturePart(nnx.Module):
    """Vectors of features: ``sum_w v_w / sqrt(number of words) + A x`` for words w and numbers x."""

    def __init__(self, features: Features, dim: int, *, rngs: nnx.Rngs) -> None:
        initial = nnx.initializers.normal(0.04)
        has_words, has_numbers = features.num_words > 0, features.numbers.shape[1] > 0
        # Checkpoints hold no arrays without elements.
        self.ids = Constant(jnp.asarray(features.words)) if has_words else None
        self.values = Constant(jnp.asarray(features.numbers)) if has_numbers else None
        self.words = cx.Embed(features.num_words, dim, embedding_init=initial, rngs=rngs) if has_words else None
        self.numbers = (
            nnx.Linear(features.numbers.shape[1], dim, use_bias=False, kernel_init=initial, rngs=rngs)
            if has_numbers
            else None
        )
        self.dim = dim

    def __call__(self, ids: Int[Array, "..."]) -> Float[Array, "... dim"]:
        """The vector of each id; zeros for -1."""
        found = jnp.zeros((*ids.shape, self.dim))
        known = jnp.maximum(ids, 0)
        if self.words is not None and self.ids is not None:
            words = self.ids[...][known]
            number = jnp.maximum(jnp.sum(words >= 0, axis=-1, keepdims=True), 1)
            found += jnp.sum(self.words(words), axis=-2) / jnp.sqrt(number.astype(jnp.float32))
        if self.numbers is not None and self.values is not None:
            found += self.numbers(self.values[...][known])
        return jnp.where((ids >= 0)[..., None], found, 0.0)


class ItemTower(nnx.Module):
    """Vectors of items: for each the sum of a table's row and the vector of its features."""

    def __init__(self, num_items: int, features: Features, dim: int, *, rngs: nnx.Rngs) -> None:
        self.table = cx.Embed(num_items, dim, embedding_init=nnx.initializers.normal(0.04), rngs=rngs)
        self.features = FeaturePart(features, dim, rngs=rngs)

    def __call__(self, ids: Int[Array, " n"]) -> Float[Array, "n dim"]:
        """The vectors of some items."""
        return self.table(ids) + self.features(ids)
