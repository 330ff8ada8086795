"""Label counts from files of counts, of labels and of whole data sets."""

from pathlib import Path

import pytest

from candax.data import label_counts_of


def written(folder: Path, text: str) -> Path:
    path = folder / "some.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "kind", "counts", "per_example"),
    [
        ("5\n0\n2.5\n", "auto", [5, 0, 2.5], 1.0),
        ("1\n0\n1\n", "labels", [1, 2], 1.0),
        ("0,1\n2\n\n1 2\n", "auto", [1, 2, 2], 5 / 3),
        ("3 4 3\n0,2 1:1.0\n2 0:0.5 3:1\n1,2 2:1\n", "auto", [1, 1, 3], 5 / 3),
        ("4 5 3\n0\n1\n2 1:1\n0 1:1\n", "auto", [2, 1, 1], 1.0),
        ("5\n7\n\n", "auto", [5, 7], 1.0),
        # Three labels each, and no features.
        ("0 1 2\n2 1 0\n", "auto", [2, 2, 2], 3.0),
    ],
)
def test_files(tmp_path: Path, text: str, kind: str, counts: list[float], per_example: float) -> None:
    found = label_counts_of(written(tmp_path, text), kind)
    assert found.counts.tolist() == counts
    assert found.labels_per_example == pytest.approx(per_example)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("5\nx\n", "auto", "some.txt:2: expected counts or labels as numbers"),
        ("5\n-1\n", "auto", "some.txt:2: expected numbers of 0 or more"),
        ("5\n1_0\n", "auto", "some.txt:2: expected counts or labels as numbers"),
        ("5\n1e39\n", "auto", "some.txt:2: expected numbers of 0 or more, at most"),
        ("5\n\n7\n", "auto", "some.txt:2: expected one count per line, got an empty line"),
        ("5\n2 3\n", "counts", "some.txt:2: expected one count per line"),
        ("5\n2 3.5\n", "auto", "some.txt:2: expected labels as whole numbers"),
        ("1 99999999999\n", "auto", "some.txt:1: expected labels as whole numbers below"),
        ("", "auto", "at least two classes, got 0"),
        ("3\n", "auto", "at least two classes, got 1"),
    ],
)
def test_errors(tmp_path: Path, text: str, kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        label_counts_of(written(tmp_path, text), kind)
