"""What the program says of itself: all commands on one screen, and what one might do after each of them."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# By purpose: of each command an example, and what it does in a few words.
_PURPOSES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Look": {
        "compare": ("candax compare", "samplers and losses beside the full softmax"),
        "advise": ("candax advise FILE", "what suits your labels on this machine"),
        "diagnose": ("candax diagnose RUN", "bias and variance on a run of train"),
    },
    "Train": {
        "train": ("candax train --dataset FOLDER", "tags of documents, any extreme labels"),
        "sequences": ("candax sequences --dataset FILE", "which item comes next"),
        "retrieve": ("candax retrieve --dataset FILE", "the next item, without order"),
        "links": ("candax links --dataset FOLDER", "which entity completes a triple"),
        "language": ("candax language", "which word comes next"),
        "word2vec": ("candax word2vec TEXT", "word vectors of a text"),
    },
    "Use": {
        "predict": ("candax predict RUN INPUT", "the best classes for new inputs"),
        "evaluate": ("candax evaluate RUN", "the measures of a run of train"),
        "export": ("candax export RUN", "class vectors as safetensors, .npy, faiss"),
        "neighbors": ("candax neighbors VECTORS WORD", "the nearest words"),
        "analogy": ("candax analogy VECTORS A B C", "a is to b as c is to which word?"),
    },
    "Papers": {"experiment": ("candax experiment", "lists the studies of four papers")},
}
# Columns of a terminal.
_NARROW = 66
# What to do after a command; {out} is its folder, {model} that of the model that was trained last.
_NEXT: Mapping[str, tuple[str, ...]] = {
    "compare": ("candax train", "candax diagnose RUN"),
    "train": ("candax predict {out} INPUT", "candax evaluate {out}", "candax export {out} --out {out}/export"),
    "word2vec": ("candax neighbors {out}/{vectors} WORD", "candax analogy {out}/{vectors} A B C"),
    "sequences": ("candax predict {model} INPUT",),
    "retrieve": ("candax predict {model} INPUT",),
    "links": ("candax predict {model} INPUT",),
    "language": ("candax predict {model} TEXTS",),
    "diagnose": ("candax compare",),
    "advise": ("candax compare", "candax train --dataset FOLDER"),
    "neighbors": ("candax analogy VECTORS A B C",),
    "analogy": ("candax neighbors VECTORS WORD",),
    "export": ("read them by what docs/guides/serving.md shows",),
    "experiment": ("candax experiment, which lists the others",),
    "evaluate": ("candax export {run}",),
}


def show_overview(commands: Iterable[str], helps: Mapping[str, str]) -> None:
    """Prints all commands by purpose, each with an example.

    Args:
        commands: names of those that there are.
        helps: a line of help of each, for those that have no place among the purposes.
    """
    console, left = Console(highlight=False), dict.fromkeys(commands)
    console.print("candax: train models with huge output layers.", style="bold", soft_wrap=True)
    rows: list[tuple[str, str]] = []
    for purpose, examples in _PURPOSES.items():
        shown = [name for name in examples if name in left]
        rows += [(purpose, "")] * bool(shown) + [examples[name] for name in shown]
        for name in shown:
            del left[name]
    rows += [("More", "")] * bool(left) + [(f"candax {name}", helps.get(name, "")) for name in left]
    _print_rows(console, rows)
    console.print("candax COMMAND --help lists options; --quick takes seconds, to see that it runs.", soft_wrap=True)


def show_studies(studies: Mapping[str, str]) -> None:
    """Prints all experiments with their lines of help."""
    console = Console(highlight=False)
    console.print("Studies of papers; each prints a table and writes results.json and a picture.", soft_wrap=True)
    _print_rows(console, [(name, line) for name, line in studies.items()])
    console.print("Example: candax experiment css-figure1 --quick", soft_wrap=True)


def _print_rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Headings, and examples with what they do beside them; below them in a narrow terminal."""
    lines, narrow = Table.grid(padding=(0, 2), pad_edge=False), console.width < _NARROW
    for example, about in rows:
        first = Text(f"  {example}") if about else Text(example, style="bold")
        second = Text(about, style="dim")
        if narrow:
            lines.add_row(first)
            if about:
                lines.add_row(Padding(second, (0, 0, 0, 4)))
        else:
            lines.add_row(first, second)
    console.print(lines)


def show_next(command: str, settings: Any) -> None:
    """Says where the files of a command are and what one might do next; on standard error, lest a pipe reads it.

    Args:
        command: its name.
        settings: those it was run with.
    """
    ready = getattr(settings, "ready", None)
    out = getattr(ready() if callable(ready) else settings, "out", None)
    run = getattr(settings, "run", None)
    formats = getattr(settings, "formats", ())
    vectors = f"vectors.{next((name for name in ('bin', 'txt', 'safetensors') if name in formats), 'bin')}"
    folders = {"out": out, "model": _model(out), "run": run}
    names = {name: shlex.quote(str(path)) for name, path in folders.items()}
    steps = [step.format(**names, vectors=vectors) for step in _NEXT.get(command, ())]
    console = Console(stderr=True, highlight=False)
    if out is not None:
        console.print(f"files: {escape(str(out))}", soft_wrap=True)
    if steps:
        console.print(f"next:  {escape('   or   '.join(steps))}", soft_wrap=True)


def _model(out: Path | None) -> Path | None:
    """The folder itself, unless it has several models, of which a command takes one."""
    models = [] if out is None else list(out.glob("models/*/model.safetensors"))
    return max(models, key=lambda path: path.stat().st_mtime_ns).parent if len(models) > 1 else out
