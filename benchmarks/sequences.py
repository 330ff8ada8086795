"""What a step of `candax sequences` costs for more and more items.

    python benchmarks/sequences.py
    python benchmarks/sequences.py --num-items 10000 1000000 --rounds 40

The recipe's model and optimizer at its defaults, on purchases that are made: items by Zipf's law, nine a user. Models
make one step by turns, and times are medians: of processor time too, as on a machine that others use.
"""

import dataclasses
import time

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from candax.allocation import with_reused_memory
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
    trainers, batches = {}, {}
    for number in settings.num_items:
        training = training_of(recipe, made(number, settings.num_users), 0, measured=False)
        batches[number] = training.batches
        trainers[number] = Trainer(*training.make(*pair_of(recipe)), loss_of_labels, 1)
    times: dict[int, list[tuple[float, float]]] = {number: [] for number in trainers}
    for turn in range(settings.rounds + 1):
        for number, trainer in trainers.items():
            batch = trainer.place(batches[number].batch(0, turn))
            start = time.perf_counter(), time.process_time()
            trainer.step(batch)[0].block_until_ready()
            if turn:  # the first one compiles
                times[number].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    table = Table("items", "ms/step", "processor ms", "of the first")
    first = np.median(times[settings.num_items[0]], axis=0)[1]
    for number, found in times.items():
        wall, processor = np.median(found, axis=0)
        table.add_row(f"{number:,}", f"{1e3 * wall:.0f}", f"{1e3 * processor:.0f}", f"{processor / first:.2f}")
    Console().print(table)


if __name__ == "__main__":
    with_reused_memory()
    main(tyro.cli(Settings, description=__doc__))
