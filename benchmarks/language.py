"""What a step of a language model costs: its body alone, with sampled words, and with all of them.

    python benchmarks/language.py                                    (33,278 words, as WikiText-2 has)
    python benchmarks/language.py --num-words 33278 1000000 --dim 64 --no-full
    python benchmarks/language.py --model transformer

The LSTM (or the transformer) of `candax language` at its defaults on words that are made, Zipf-distributed. All kinds
make one step by turns, and times are medians: of processor time too, as on a machine that others use.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import tyro
from measuring import show

from candax.allocation import with_reused_memory
from candax.diagnostics.timing import timed
from candax.recipes import common
from candax.recipes.language.command import LanguageSettings, _make, _pair
from candax.recipes.language.files import END, Text
from candax.recipes.language.streams import StreamBatches
from candax.training.trainer import Trainer, loss_of_labels


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes; those of words and steps are the recipe's."""

    num_words: tuple[int, ...] = (33_278,)
    """Sizes of the vocabulary."""
    model: Literal["lstm", "transformer"] = "lstm"
    """The model between table and head."""
    num_sampled: int = 2048
    """Candidates."""
    dim: int = 256
    """Coordinates of words and states."""
    num_streams: int = 32
    """Rows per step."""
    length: int = 35
    """Words of each."""
    full: bool = True
    """Whether the full softmax is measured."""
    rounds: int = 5
    """Steps of each kind."""


def body_alone(model: Any, batch: Any) -> Any:
    """A loss that no class vector is needed for, besides those that are read."""
    return jnp.mean(model(batch) ** 2)


def main(settings: Settings) -> None:
    """Prints a table."""
    rows = [row for number in settings.num_words for row in measured(settings, number)]
    show("medians", common.columns(step="", words=",", ms=",.0f", processor_ms=",.0f"), rows)


def measured(settings: Settings, num_words: int) -> list[dict[str, Any]]:
    """A row for each kind of step."""
    sampled = LanguageSettings(
        model=settings.model,
        dim=settings.dim,
        dropout=0.2,
        num_streams=settings.num_streams,
        length=settings.length,
        num_sampled=settings.num_sampled,
    )
    ids = np.minimum(np.random.default_rng(0).zipf(1.2, 200_000) - 1, num_words - 1).astype(np.int32)
    names = (END, *(f"w{i}" for i in range(1, num_words)))
    text = Text("made", names, ids, ids[:1], ids[:1])
    batches = StreamBatches(ids, settings.num_streams, settings.length, context=sampled.read_again, seed=0)
    kinds = {"body alone": (sampled, body_alone), "sampled words": (sampled, loss_of_labels)}
    if settings.full:
        kinds["all words"] = dataclasses.replace(sampled, loss=None), loss_of_labels
    trainers = {
        name: Trainer(*_make(chosen, text, 1000, 0, *_pair(chosen, text)), loss_fn, 1)
        for name, (chosen, loss_fn) in kinds.items()
    }
    of_turn = [batches[0, turn] for turn in range(settings.rounds + 1)]

    def step(trainer: Trainer, turn: int) -> Any:
        return trainer.step(trainer.place(of_turn[turn]))

    times = timed({name: functools.partial(step, trainer) for name, trainer in trainers.items()}, settings.rounds)
    medians = {name: np.median(found, axis=0).tolist() for name, found in times.items()}
    return [{"step": name, "words": num_words, "ms": ms, "processor_ms": busy} for name, (ms, busy) in medians.items()]


if __name__ == "__main__":
    with_reused_memory()
    main(tyro.cli(Settings, description=__doc__))
