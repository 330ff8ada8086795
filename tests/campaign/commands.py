"""Commands of recipes, at small sizes, as runs that may be killed: see ``runs``."""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from candax.files import naming
from candax.recipes import common
from candax.recipes.extreme.train import Train, train
from candax.recipes.language.command import LanguageSettings, language
from candax.recipes.links.command import LinksSettings, links
from candax.recipes.retrieval.command import RetrieveSettings, retrieve
from candax.recipes.sequences.command import SequencesSettings, sequences
from candax.training import export
from tests.campaign import references

# What a clock says is another in each run.
# (and ``candax train`` calls its data what their folder is called).
_CLOCKS = {"seconds", "words_per_second", "data"}


def _often(every: int) -> None:
    """Has checkpoints of studies written more often than small runs would have them."""
    common.Training.__init__ = functools.partialmethod(common.Training.__init__, checkpoint_every=every)


def _ended(out: Path) -> dict[str, np.ndarray]:
    """The figures of a command, and what its models learned."""
    rows = [
        {name: value for name, value in row.items() if name not in _CLOCKS}
        for row in json.loads((out / "results.json").read_text())
    ]
    found = {"rows": np.frombuffer(json.dumps(rows, sort_keys=True).encode(), np.uint8)}
    for checkpoints in sorted(out.rglob("checkpoints")):
        for path in export(checkpoints.parent, checkpoints.parent / "exported"):
            if path.suffix == ".npy":
                found[f"{checkpoints.parent.relative_to(out)} {path.name}"] = np.load(path)
    return found


def _write(path: Path, text: str) -> None:
    with naming(path):  # the disk may be full
        path.write_text(text)


def _trained_links(folder: Path) -> dict[str, np.ndarray]:
    _often(60)
    triples = "".join(f"e{i % 40}\tr{i % 3}\te{(i * 7 + i // 40) % 40}\n" for i in range(300))
    _write(folder / "triples.tsv", triples)
    links(
        LinksSettings(
            dataset=str(folder / "triples.tsv"), dim=8, num_sampled=16, batch_size=16, epochs=20, curve_questions=20,
            out=folder / "run",
        )
    )  # fmt: skip
    return _ended(folder / "run")


def _trained_sequences(folder: Path) -> dict[str, np.ndarray]:
    _often(20)
    rng = np.random.default_rng(0)
    lines = [f"u{user} {' '.join(f'i{item}' for item in rng.permutation(30)[:8])}\n" for user in range(60)]
    _write(folder / "shop.txt", "".join(lines))
    sequences(
        SequencesSettings(
            dataset=str(folder / "shop.txt"), dim=8, num_sampled=16, num_rows=2, length=16, epochs=8, curve_users=20,
            out=folder / "run",
        )
    )  # fmt: skip
    return _ended(folder / "run")


def _trained_towers(folder: Path) -> dict[str, np.ndarray]:
    _often(20)
    rng = np.random.default_rng(0)
    lines = [f"u{user} {' '.join(f'i{item}' for item in rng.permutation(30)[:8])}\n" for user in range(60)]
    _write(folder / "shop.txt", "".join(lines))
    retrieve(
        RetrieveSettings(
            dataset=str(folder / "shop.txt"), dim=8, hidden_dim=8, num_sampled=16, num_rows=2, length=16, epochs=8,
            curve_users=20, out=folder / "run",
        )
    )  # fmt: skip
    return _ended(folder / "run")


def _trained_language(folder: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{word}" for word in rng.integers(0, 20, 9)) for _ in range(200)]
    _write(folder / "text.txt", "\n".join(lines))
    language(
        LanguageSettings(
            dataset=str(folder / "text.txt"), dim=8, num_sampled=4, num_streams=4, length=10, epochs=4, dropout=0.2,
            curve_words=50, checkpoint_every=20, out=folder / "run",
        )
    )  # fmt: skip
    return _ended(folder / "run")


def _trained_labels(folder: Path) -> dict[str, np.ndarray]:
    for part in ("train", "test"):
        _write(folder / f"{part}.txt", references.EXAMPLES)
    train(
        Train(
            dataset=str(folder), dim=4, num_sampled=3, batch_size=4, epochs=200, checkpoint_every=60,
            out=folder / "run",
        )
    )  # fmt: skip
    return _ended(folder / "run")


COMMANDS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "candax language": _trained_language,
    "candax links": _trained_links,
    "candax retrieve": _trained_towers,
    "candax sequences": _trained_sequences,
    "candax train": _trained_labels,
}
