"""What a step of `candax sequences` costs for more and more items.

    python benchmarks/sequences.py
    python benchmarks/sequences.py --num-items 10000 1000000 --rounds 40

The recipe's model and optimizer at its defaults, on purchases that are made: items by Zipf's law, nine a user. Models
make one step by turns, and times are medians: of processor time too, as on a machine that others use.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import tyro
from measuring import show

from candax.allocation import with_reused_memory
from candax.diagnostics.timing import timed
from candax.recipes import common
from candax.recipes.sequences.building import pair_of
from candax.recipes.sequences.command import SequencesSettings, training_of
from candax.recipes.sequences.files import Sequences
from candax.training.trainer import Trainer, loss_of_labels

_PER_USER = 9


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes; what is not here is the recipe's."""

    num_items: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """Items to choose from."""
    num_users: int = 20_000
    """Users whose purchases are made."""
    rounds: int = 20
    """Steps at each number of items."""


def made(num_items: int, num_users: int) -> Sequences:
    """Purchases by Zipf's law."""
    rng = np.random.default_rng(0)
    # Inverse of the cumulative 1 / x: ids in proportion to that, up to the last one.
    items = (num_items ** rng.random(num_users * _PER_USER)).astype(np.int32) - 1
    offsets = np.arange(num_users + 1, dtype=np.int64) * _PER_USER
    return Sequences("made", tuple(map(str, range(num_items))), items, offsets)


def main(settings: Settings) -> None:
    """Prints a table."""
    recipe = SequencesSettings()

    def step(trainer: Trainer, placed: list[Any], turn: int) -> Any:
        return trainer.step(placed[turn])

    steps = {}
    for number in settings.num_items:
        training = training_of(recipe, made(number, settings.num_users), 0, measured=False)
        trainer = Trainer(*training.make(*pair_of(recipe)), loss_of_labels, 1)
        placed = [trainer.place(training.batches.batch(0, turn)) for turn in range(settings.rounds + 1)]
        steps[number] = functools.partial(step, trainer, placed)
    found = {number: np.median(times, axis=0).tolist() for number, times in timed(steps, settings.rounds).items()}
    first = found[settings.num_items[0]][1]
    rows = [{"items": number, "ms": ms, "busy": busy, "ratio": busy / first} for number, (ms, busy) in found.items()]
    columns = common.columns(items=",", ms=".0f")
    columns += [common.Column("processor ms", "busy", ".0f"), common.Column("of the first", "ratio", ".2f")]
    show("a step", columns, rows)


if __name__ == "__main__":
    with_reused_memory()
    main(tyro.cli(Settings, description=__doc__))
