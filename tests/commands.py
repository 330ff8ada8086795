"""Commands as a user gives them, and a small data set for them to work on."""

from pathlib import Path

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
