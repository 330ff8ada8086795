"""Commands as a user gives them, and small data sets for them to work on."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from candax import cli


def write_dataset(folder: Path, *, unlabelled_tests: bool = False) -> Path:
    """Two files of 64 examples of 30 features and 20 classes; the class can be read off a feature.

    ``unlabelled_tests`` takes the labels of every second test example away.
    """
    folder.mkdir()
    for name in ("train", "test"):
        lines = ["64 30 20"]
        for i in range(64):
            labels = "" if unlabelled_tests and name == "test" and i % 2 else f"{i % 20},{(i * 7 + 1) % 20}"
            lines.append(f"{labels} {i % 20}:1 {20 + i % 10}:0.5")
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_shop(folder: Path) -> Path:
    """20 items in a circle: each of 150 users goes on from a start, so that the next item is known."""
    rng = np.random.default_rng(0)
    lines = []
    for user in range(150):
        start, length = rng.integers(20), rng.integers(4, 9)
        lines.append(" ".join(map(str, [f"u{user}", *((start + np.arange(length)) % 20)])))
    path = folder / "shop.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def write_ring(folder: Path) -> Path:
    """What follows what on a ring of 60, said in two ways; for testing, in one way only, and of one unknown entity."""
    lines = [f"e{i}\t{how}\te{(i + 1) % 60}\n" for i in range(60) for how in ("next", "after")]
    folder.mkdir()
    (folder / "train.tsv").write_text("".join(line for i, line in enumerate(lines) if i % 14))
    (folder / "test.tsv").write_text("".join(line for i, line in enumerate(lines) if not i % 14) + "e1\tnext\tnew\n")
    (folder / "valid.tsv").write_text(lines[14])
    return folder


def write_words(folder: Path) -> Path:
    """600 lines of text, of which most words follow from those before."""
    path = folder / "text.txt"
    path.write_text("\n".join(f"line {number % 7} of {number % 5} and {number}" for number in range(600)))
    return path


def piped(monkeypatch, text):
    """Gives the next command this text as its standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def run(*args):
    """Runs a command."""
    cli.main([str(arg) for arg in args])


def fails(capsys, *args):
    """Runs a command that must end with one clear line; returns the line."""
    with pytest.raises(SystemExit) as exit_:
        run(*args)
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("candax: error: ")
    return line
