"""`candax predict`: what a finished run predicts for new inputs, from a file or standard input.

    candax predict runs/train test.txt --k 5             (examples in the repository's text format)
    candax predict runs/sequences histories.txt          (user item item ...)
    candax predict runs/links questions.tsv              (head, relation, ?)
    candax predict runs/language texts.txt               (the beginning of a text)
    echo parse | candax predict runs/word2vec -          (one word per line)

Inputs are read and answered 1,024 at a time, however many there are. The file of ``--out`` appears
only when all is written; standard output may end early where an input is faulty, with exit status 2.
"""

import dataclasses
import importlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import tyro

from candax.checks import check_positive
from candax.recipes.predict import lines
from candax.recipes.predict.loading import TASKS, load_task

# Settings that only runs of some tasks have, and these tasks.
_OF_TASK = {"ids": ("extreme",), "keep_seen": ("sequences", "retrieve"), "exclude_known": ("links",)}


@dataclasses.dataclass(frozen=True)
class Predict:
    """Answers each line of a file by what a finished run has learned: the best classes, items, entities or words."""

    run: tyro.conf.Positional[Path]
    """Folder of a finished run of `candax train`, `sequences`, `retrieve`, `links`, `language` or `word2vec`; or a file
    of word vectors."""
    input: tyro.conf.Positional[str]
    """File of inputs, plain or .gz, .bz2, .xz, .zst, or - for standard input."""
    k: int = 10
    """Number of answers to each input."""
    out: Path | None = None
    """File to write; None: standard output."""
    format: lines.Format = "tsv"
    """tsv: lines of input, rank, name and score; jsonl: an object for each input, with its names and scores."""
    index: Path | None = None
    """Search approximately, through the index in this file; if it is missing, an index is built and saved there."""
    ids: bool = False
    """For runs of `candax train`: write the numbers of classes instead of their names."""
    keep_seen: bool = False
    """For runs of `candax sequences` and `retrieve`: recommend items of the history too."""
    exclude_known: bool = False
    """For runs of `candax links`: leave out answers that were trained on."""


def predict(settings: Predict) -> Counter[str]:
    """Answers all inputs; returns what was counted on the way."""
    check_positive("--k", settings.k)
    given = Path(settings.input)
    if settings.out is not None and settings.out.exists() and given.exists() and settings.out.samefile(given):
        raise ValueError(f"expected --out to be another file than the input, got {settings.out} for both.")
    task, found = load_task(settings.run)
    options = _options(settings, task)
    answers = importlib.import_module(f"candax.recipes.predict.{TASKS[task].answers}").answers
    notes: Counter[str] = Counter()
    source, as_text, number = lines.source(settings.input), lines.FORMATS[settings.format], 0
    with lines.writing(settings.out) as write:
        # Last, as it takes longest to build: not for an input that is not there.
        if settings.index is not None:
            options |= _through(found, settings.index)
        for batch in answers(found, source, settings.k, notes, **options):
            write("".join(map(as_text, batch)))
            number += len(batch)
    for note, count in {"inputs answered": number, **notes}.items():
        print(f"{note}: {count:,}", file=sys.stderr)
    return notes


def _options(settings: Predict, task: str) -> dict[str, Any]:
    """The options of the run's task; those of other tasks must not be given."""
    for name, of in _OF_TASK.items():
        if getattr(settings, name) and task not in of:
            commands = " or ".join(f"`{TASKS[of_task].command}`" for of_task in of)
            raise ValueError(
                f"expected --{name.replace('_', '-')} with a run of {commands} alone, got it with one of "
                f"`{TASKS[task].command}`."
            )
    return {name: getattr(settings, name) for name, of in _OF_TASK.items() if task in of}


def _through(found: Any, index: Path) -> dict[str, Any]:
    """Makes a run search through an index; returns further options for the answers."""
    if hasattr(found, "use_index"):
        found.use_index(index)
        return {}
    from candax.recipes.common.search import Search
    from candax.recipes.predict.words import classes_of

    return {"search": Search(classes_of(found), index)}
