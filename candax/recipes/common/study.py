"""The runner of all studies: a problem, a list of methods and a list of measures become results, table and picture."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from candax.recipes.common import report
from candax.recipes.common.results import (
    MODELS,
    UNFINISHED,
    as_json,
    folder_for,
    plain,
    read_rows,
    set_aside,
    without_models,
    write_json,
)
from candax.recipes.common.settings import Settings, new_folder
from candax.recipes.common.training import Run

Row: TypeAlias = dict[str, Any]
S = TypeVar("S", bound=Settings)
_SEED = "seed"
# The widest table that is measured, in characters.
_WIDEST = 400


@dataclasses.dataclass(frozen=True)
class Method:
    """A method that a study compares: a row of its results.

    Attributes:
        labels: JSON values that tell it from the others: ``{"method": "css", "num_sampled": 20}``. Rows that differ in
            the label ``seed`` alone are one in table and picture, with means for figures.
        run: a function that gives its figures, such as ``Training.by(...)``.
    """

    labels: Mapping[str, Any]
    run: Run


@dataclasses.dataclass(frozen=True)
class Study:
    """What is to be run, and how it is shown.

    Attributes:
        title: of table and picture: the data and their sizes.
        methods: in this order.
        columns: of the table.
        panels: of the picture, side by side.
        claim: the paper's claim, under the picture's title.
        caption: under the table.
        reference: the label of lines that are drawn in black, such as the full softmax's.
        picture: file name of the picture; default: the name of the study's module.
        may_change: names of settings that choose methods: a study may go on with other values of these.
        results: makes the rows of ``results.json`` from a row of figures, in a form for readers; the runner then keeps
            its own rows, from which it goes on, in ``study.json``.
        data: a digest of what is trained on and measured with: rows of other data are not kept.
        names: of classes and others, with which models are saved: a part of the data, too.
        notes: what to know of the data, printed before all else.
    """

    title: str
    methods: Sequence[Method]
    columns: Sequence[report.Column]
    panels: Sequence[report.Panel]
    claim: str = ""
    caption: str | None = None
    reference: str = "full_softmax"
    picture: str = ""
    may_change: Sequence[str] = ()
    results: Callable[[Row], list[Row]] | None = None
    data: str = ""
    names: Sequence[Sequence[Any]] = ()
    notes: Sequence[str] = ()


def run(study: Study, settings: Settings) -> list[Row]:
    """Runs all methods, prints the table, and writes ``results.json`` and the picture into ``settings.out``.

    A study that was killed goes on where it was: methods whose rows are in ``results.json`` are not run again if it is
    of the same study, settings and data and their models are there; long trainings go on from their last checkpoint.
    Rows of other settings or data are kept beside, in ``results-before.json`` (or ``study-before.json``), and found
    there again where they keep no models.

    Args:
        study: what to run.
        settings: the seeds and sizes it was made with.

    Returns:
        A row for each method, averaged over seeds: its labels, its figures, and those that columns compute from several
        rows. ``results.json`` has the rows of each seed under "rows", and what the table shows under "table".

    Raises:
        ValueError: if the folder has the rows of another study, or what cannot be read, or another study writes to it.
    """
    from candax.training.agreement import alone  # the help of a command need not load it

    out = folder_for(_name(study, settings), settings.out)
    with alone(out / ".study.lock"):
        return _run(study, settings)


def _run(study: Study, settings: Settings) -> list[Row]:
    """See ``run``; no other study writes to the folder meanwhile."""
    out, console = settings.out, Console()
    identity = _identity(study, settings)
    file = out / ("results.json" if study.results is None else "study.json")
    for note in study.notes:
        console.print(note, soft_wrap=True, markup=False)
    console.print(study.title, markup=False)
    defaults = as_json({field.name: field.default for field in dataclasses.fields(settings)})
    defaults |= dict.fromkeys(study.may_change)
    found = read_rows(file, identity, defaults)
    if found is None:
        before = next(
            (
                path
                for path in sorted(out.glob(f"{file.stem}-before*.json"))
                if without_models(read_rows(path, identity, defaults))
            ),
            None,
        )
        set_aside(out, file, console)
        if before is None:
            # Before the first row, too: what a training that is cut off leaves is then known to be of this study.
            write_json(file, {**identity, "rows": []})
        else:
            before.rename(file)
            found = read_rows(file, identity, defaults)
    done = [row for row in found or () if all((out / path).is_file() for path in row.get(MODELS, ()))]
    # What is asked for twice, as by two equal words of an option, is run once.
    methods = {json.dumps(as_json(method.labels), sort_keys=True): method for method in study.methods}
    every = [as_json(method.labels) for method in methods.values()]
    others = [row for row in done if not any(labels.items() <= row.items() for labels in every)]
    if done:
        console.print(
            f"{len(done) - len(others)} of {len(every)} rows are in {out} already: remove it to run them again",
            markup=False,
        )
    rows: list[Row] = []
    for labels, (name, method) in zip(every, methods.items(), strict=True):
        row = next((row for row in done if labels.items() <= row.items()), None)
        # By its labels: among other methods it may have another number when it goes on.
        folder = out / UNFINISHED / hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        if row is None:
            # Rows from before that are not reached yet are kept, too.
            kept = [other for other in done if not any(other is one for one in rows)]
            try:
                row = {**labels, **as_json(method.run(folder))}
            except KeyboardInterrupt as stopped:
                finished = sum(any(one.items() <= row.items() for row in (*rows, *kept)) for one in every)
                _say_how_to_go_on(stopped, f"{finished} of {len(every)} rows are saved in {out}")
                raise
            # After each method: a long study that is cut off leaves what it has.
            write_json(file, {**identity, "rows": [*rows, row, *kept]})
        shutil.rmtree(folder, ignore_errors=True)
        rows.append(row)
    with contextlib.suppress(OSError):  # trainings of methods that are not among these may go on later
        (out / UNFINISHED).rmdir()
    try:
        shown = _over_seeds(rows, every)
        return _report(study, settings, file, {**identity, "rows": rows + others}, rows, shown)
    except KeyError as error:
        if not done:
            raise
        raise ValueError(
            f"{file}: expected rows with {error}, got one without, as of another version. Remove it."
        ) from error


def _report(
    study: Study, settings: Settings, file: Path, saved: Row, rows: Sequence[Row], shown: list[Row]
) -> list[Row]:
    """Writes the rows with what the table shows, prints it and draws the picture; returns what it shows."""
    out, console = settings.out, Console()
    for row in shown:
        row.update({column.name: column.value(row, shown) for column in study.columns})
    table = [{column.name: row[column.name] for column in study.columns} for row in shown]
    write_json(file, {**saved, "table": table})
    if study.results is not None:
        write_json(out / "results.json", [result for row in rows for result in study.results(row)])
    show(report.table(study.title, study.columns, shown, study.caption))
    title = "\n".join(filter(None, (study.title, study.claim)))
    picture = out / (study.picture or f"{settings.name}.png")
    for to in (picture, picture.with_suffix(".svg")):  # to look at, and for papers and pages
        report.draw(title, study.panels, shown, study.reference, to)
    console.print(f"wrote {out / 'results.json'}, {picture} and {picture.stem}.svg", soft_wrap=True, markup=False)
    return shown


def command(build: Callable[[S], Study]) -> Callable[[S], list[Row]]:
    """Makes a command of a function that builds a study: it readies settings and folder, then builds and runs it."""

    @functools.wraps(build)
    def of(settings: S) -> list[Row]:
        settings = settings.ready()
        with new_folder(settings.out):  # or it fails now, not when the data have been read
            study = build(settings)
        return run(study, settings)

    return of


def kept_in(out: Path, *models: Path) -> Row:
    """A part of a row: its models in the study's folder, without which the row is made again."""
    return {MODELS: [path.relative_to(out).as_posix() for path in models]}


def show(found: Table) -> None:
    """Prints a table, wider than the terminal rather than with words cut off."""
    wide = Console(width=_WIDEST).measure(found).maximum
    Console(width=max(Console().width, wide)).print(found)


def _say_how_to_go_on(stopped: KeyboardInterrupt, saved: str) -> None:
    """Raises another ``Interrupted`` where ``fit`` has saved nothing or was not at work: the study has its rows."""
    from candax.training import Interrupted  # loads orbax, which the help of a command need not

    when, nothing, _ = str(stopped).partition(" Nothing was saved")
    if nothing or not isinstance(stopped, Interrupted):
        when = when if nothing else f"{when or 'interrupted'}."
        raise Interrupted(f"{when} {saved}; the same command goes on.") from stopped


def first_finite(attempts: Mapping[Any, Run], label: str) -> Run:
    """Runs one attempt after the other until the loss of one stays finite.

    Args:
        attempts: what to run in turn, by learning rate for example.
        label: where the row names the attempt that stayed finite (None: none did); ``diverged`` has those before it.

    Returns:
        A function for ``Method.run``.
    """

    def run(folder: Path | None) -> dict[str, Any]:
        diverged: list[Any] = []
        for name, attempt in attempts.items():
            try:
                return {**attempt(folder and folder / str(name)), label: name, "diverged": diverged}
            except FloatingPointError:
                diverged.append(name)
        return {label: None, "diverged": diverged}

    return run


def _name(study: Study, settings: Settings) -> str:
    return Path(study.picture or settings.name).stem


def _identity(study: Study, settings: Settings) -> dict[str, Any]:
    """What rows of a study have in common: rows of another identity are not kept."""
    changeable = dict.fromkeys(("out", *study.may_change))
    own = {name for values in settings.UNLESS_GIVEN for name in values}
    data = study.data
    if study.names:
        names = json.dumps(study.names, default=plain)
        data += f" {hashlib.blake2b(names.encode(), digest_size=16).hexdigest()}"
    of = {
        "study": _name(study, settings),
        "title": study.title,
        "data": data,
        "settings": {**dataclasses.asdict(settings), **changeable},
        # Where one of these is given, even at its default, it takes the place of what a method has of its own.
        "given": sorted(vars(settings)["_given"] & own - changeable.keys()),
    }
    return dict(as_json(of))


def _over_seeds(rows: Sequence[Row], labels: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row for those whose labels differ in the seed alone: means, and the single values as ``NAME_by_seed``."""
    groups: dict[str, list[Row]] = {}
    for row, of_row in zip(rows, labels, strict=True):
        key = json.dumps({name: value for name, value in of_row.items() if name != _SEED})
        groups.setdefault(key, []).append(row)
    names = frozenset(name for of_row in labels for name in of_row)
    return [_mean(group, names) if _SEED in group[0] else dict(group[0]) for group in groups.values()]


def _mean(rows: Sequence[Row], labels: frozenset[str]) -> Row:
    """Means over the rows that have a figure: a training that diverged has none."""
    mean: Row = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if row.get(name) is not None]
        if name == "curve":
            mean["curve_by_seed"] = values
            drawn = [curve for curve in values if curve]  # of a training whose log was lost nothing is
            # Trainings of other lengths, which a run may go on to, are measured at other steps: one is shown.
            alike = drawn if len({tuple(curve["step"]) for curve in drawn if "step" in curve}) <= 1 else drawn[:1]
            columns = alike[0] if alike else ()
            mean[name] = {column: np.mean([curve[column] for curve in alike], axis=0).tolist() for column in columns}
        elif name in labels or not values or not all(isinstance(value, int | float) for value in values):
            mean[name] = values[0] if values else None
        else:
            mean[name], mean[f"{name}_by_seed"] = float(np.mean(values)), values
    return mean
