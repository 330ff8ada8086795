"""How often each class is a label: from files of counts, of labels, or of whole data sets."""

import os
from array import array
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float32

from candax.checks import checked
from candax.data.streams import check_read_again, text_lines
from candax.data.xml_repository import read_examples

KindOfCounts = Literal["auto", "counts", "labels"]

_SHOWN = 40
_LARGEST = float(np.finfo(np.float32).max)
# Larger ids would ask for a table of that many classes.
_MOST_CLASSES = 1 << 28


class LabelCounts(NamedTuple):
    """Label frequencies by class, and the mean number of labels of the examples that have any."""

    counts: Float32[np.ndarray, " num_classes"]
    labels_per_example: float


@checked
def label_counts_of(path: str | os.PathLike[str], kind: KindOfCounts = "auto") -> LabelCounts:
    r"""Reads label frequencies from a text file, plain or .gz, .bz2, .xz, .zst.

    A file that starts with a line of three numbers and then has lines with ``feature:value`` is a training file of the
    Extreme Classification Repository. Otherwise, if all lines have one number, these are counts, the first for class 0;
    if any line has several, separated by blanks, tabs or commas, each line holds the labels of one example.

    Args:
        path: of the file.
        kind: "counts" or "labels" where the file would be taken for something else, such as one label per line.

    Returns:
        The counts. A file of counts does not say how many labels an example has: 1.

    Raises:
        ValueError: for a line that is none of these, or an empty line between counts; with file and line number.
        OSError: if there is no such file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "labels.txt")
        >>> _ = path.write_text("0 2\n2\n2 1 0\n")
        >>> found = label_counts_of(path)
        >>> found.counts.tolist(), found.labels_per_example
        ([2.0, 1.0, 3.0], 2.0)
    """
    path = Path(path)
    # A number and a line take 8 bytes each: files may have 10^8 classes.
    numbers, sizes = array("d"), array("q")
    for number, line in text_lines(path):
        parts = line.replace(",", " ").split()
        try:
            if "_" in line:  # Python reads 1_0 as 10
                raise ValueError
            row = [float(part) for part in parts] if kind != "labels" else [int(part) for part in parts]
        except ValueError:
            if kind == "auto" and ":" in line and sizes and sizes[0] == 3:
                check_read_again(path)
                labels = read_examples(path).labels
                found = np.bincount(labels.indices, minlength=labels.shape[1]).astype(np.float32)
                return _checked(path, found, int(np.sum(np.diff(labels.indptr) > 0)))
            shown = line if len(line) <= _SHOWN else line[:_SHOWN] + "..."
            raise ValueError(
                f"{path}:{number}: expected counts or labels as numbers, or a file in the text format of the Extreme "
                f"Classification Repository, got {shown!r}."
            ) from None
        if not all(0 <= value <= _LARGEST for value in row):
            raise ValueError(f"{path}:{number}: expected numbers of 0 or more, at most 3e38, got {line[:_SHOWN]!r}.")
        if kind == "counts" and len(row) > 1:
            raise ValueError(f"{path}:{number}: expected one count per line, got {len(row)} numbers.")
        numbers.extend(row)
        sizes.append(len(row))
    values, of_lines = np.array(numbers), np.array(sizes, np.int64)
    if kind == "counts" or (kind == "auto" and of_lines.max(initial=0) <= 1):
        of_lines = np.trim_zeros(of_lines, "b")
        if len(empty := np.flatnonzero(of_lines == 0)):
            raise ValueError(
                f"{path}:{empty[0] + 1}: expected one count per line, got an empty line: write 0 for a class "
                "without examples, or say that lines hold labels (kind 'labels')."
            )
        return _checked(path, values.astype(np.float32), None)
    if len(wrong := np.flatnonzero((values != np.floor(values)) | (values >= _MOST_CLASSES))):
        number = int(np.searchsorted(np.cumsum(of_lines), wrong[0], side="right")) + 1
        raise ValueError(f"{path}:{number}: expected labels as whole numbers below 2^28, got {values[wrong[0]]:.15g}.")
    found = np.bincount(values.astype(np.int64)).astype(np.float32)
    return _checked(path, found, int(np.count_nonzero(of_lines)))


def _checked(path: Path, counts: np.ndarray, examples: int | None) -> LabelCounts:
    if len(counts) < 2 or not counts.sum() > 0:
        got = f"{len(counts)} counts of 0" if len(counts) > 1 else len(counts)
        raise ValueError(f"{path}: expected labels or counts of at least two classes, got {got}.")
    return LabelCounts(counts, 1.0 if examples is None else float(counts.sum() / examples))
