"""The rows of a study on disk: read, written in one step, and kept beside where they are of other settings."""

import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from candax.recipes.common.settings import writable_folder
from candax.training.metrics_log import write_atomically

# Where a study keeps what a training goes on from, and under which name a row names the files of its models.
UNFINISHED = "unfinished"
MODELS = "models"


def folder_for(name: str, out: Path) -> Path:
    """As ``writable_folder``, for the results of one study or command.

    Raises:
        ValueError: if the folder has results of another one.
    """
    for file in (writable_folder(out) / "study.json", out / "results.json"):
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none, or what is refused where it is read
            continue
        if isinstance(found, dict) and found.get("study", name) != name and found.get("rows") != []:
            raise ValueError(
                f"expected --out to be a folder of {name}, got {out}, which has results of {found['study']}: give "
                "another one."
            )
    return out


def read_rows(path: Path, identity: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The rows in the file; None if there is no file, or one with other data or settings.

    ``defaults`` stand for settings that the study did not have when the file was written.
    """
    found = _read(path)
    if isinstance(found.get("settings"), dict):
        found["settings"] = {**defaults, **found["settings"]}
    if identity.items() <= found.items():
        rows = found.get("rows")
        if not isinstance(rows, list) or not all(isinstance(row, dict) and _may_be_drawn(row) for row in rows):
            raise ValueError(f'{path}: expected the rows of a study under "rows", got something else. Remove it.')
        return [{**row, "curve": _with_nan(row["curve"])} if row.get("curve") else row for row in rows]
    return None


def write_json(path: Path, results: Any) -> None:
    """Writes JSON, which has null for numbers that are not finite."""
    found = json.loads(json.dumps(results), parse_constant=lambda name: None)
    write_atomically(path, json.dumps(found, indent=1, allow_nan=False) + "\n")


def kept_once(path: Path, name: str, of: Any, make: Callable[[], Any]) -> Any:
    """What was made under a name, of the same, when it was asked for first, as JSON values.

    Args:
        path: of the file that keeps it.
        name: of what is made.
        of: all that it depends on; with something else it is made anew.
        make: makes it.

    Raises:
        ValueError: for a file that holds something else.
    """
    kept, of = _read(path), as_json(of)
    if name not in kept or kept[name]["of"] != of:
        kept[name] = {"of": of, "made": as_json(make())}
        write_json(path, kept)
    return kept[name]["made"]


def set_aside(out: Path, file: Path, console: Console) -> None:
    """Keeps rows of other settings or data beside; unfinished trainings, which are of the same, are removed."""
    unfinished = out / UNFINISHED
    if unfinished.exists():
        shutil.rmtree(unfinished, ignore_errors=True)
        told = f"removed unfinished trainings of other settings or data: {unfinished}"
        console.print(told, soft_wrap=True, markup=False)
    if not file.exists() or json.loads(file.read_text(encoding="utf-8")).get("rows") == []:
        return
    files = {file, out / "results.json"}
    number = next(n for n in itertools.count(1) if not any(_beside(path, n).exists() for path in files))
    for path in files:
        if path.exists():
            path.rename(_beside(path, number))
    console.print(
        f"{file} had rows of other settings or data, which are kept in {_beside(file, number).name}",
        soft_wrap=True,
        markup=False,
    )


def without_models(rows: list[dict[str, Any]] | None) -> bool:
    """Whether rows can be taken up again: a model's file may be that of others since."""
    return bool(rows) and not any(row.get(MODELS) for row in rows or ())


def _read(path: Path) -> dict[str, Any]:
    """What a file of a study holds; nothing where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path}: expected the JSON of a study, got another file ({error}). Remove it.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected the JSON of a study, got {type(found).__name__}. Remove it.")
    return found


def _beside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-before{f'-{number}' if number > 1 else ''}.json")


def _may_be_drawn(row: Mapping[str, Any]) -> bool:
    curve = row.get("curve") or {}
    return isinstance(curve, dict) and all(isinstance(values, list) for values in curve.values())


def _with_nan(curve: Mapping[str, Sequence[float | None]]) -> dict[str, list[float]]:
    """A curve as it was before ``write_json``."""
    return {name: [math.nan if value is None else value for value in values] for name, values in curve.items()}


def as_json(value: Any) -> Any:
    """The value as it would be read back from a JSON file."""
    return json.loads(json.dumps(value, default=plain))


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
