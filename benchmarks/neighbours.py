"""Nearest neighbours among sparse examples: `candax train`'s baseline beside scikit-learn's search.

    python benchmarks/neighbours.py --dataset FOLDER
    python benchmarks/neighbours.py --examples 1000

The first test examples ask for 100 training examples of largest cosine. Both searches are exact, so that their cosines
agree, and run by turns; times are medians.
"""

import dataclasses
import statistics
import time

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from candax import data
from candax.recipes.extreme import baselines

_NUMBER = 100


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is searched."""

    dataset: str = "python-stdlib"
    """python-stdlib, or a folder in the text format of the Extreme Classification Repository."""
    examples: int = 2048
    """Test examples that ask."""
    rounds: int = 3
    """Searches of each kind."""


def scikit_learn(dataset: data.Dataset) -> np.ndarray:
    """Cosines by scikit-learn."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=_NUMBER, metric="cosine", algorithm="brute").fit(dataset.train.features)
    features = dataset.test.features
    parts = [index.kneighbors(features[at : at + 512])[0] for at in range(0, features.shape[0], 512)]
    return np.maximum(1 - np.concatenate(parts), 0)


def candax(dataset: data.Dataset) -> np.ndarray:
    """Cosines by the baseline."""
    return baselines.neighbours(dataset, _NUMBER)[0]


def main(settings: Settings) -> None:
    """Prints a table."""
    whole = data.load(settings.dataset)
    test = data.Examples(whole.test.features[: settings.examples], whole.test.labels[: settings.examples])
    dataset = dataclasses.replace(whole, test=test)
    times: dict[str, list[float]] = {}
    found = {}
    for _ in range(settings.rounds):
        for search in (scikit_learn, candax):
            start = time.perf_counter()
            found[search.__name__] = search(dataset)
            times.setdefault(search.__name__, []).append(time.perf_counter() - start)
    table = Table(title=f"{dataset.name}: {len(dataset.train):,} examples")
    for column in ("search", "ms per question", "least", "largest difference of a cosine"):
        table.add_column(column, justify="right")
    for name, seconds in times.items():
        apart = np.abs(found[name] - found["scikit_learn"]).max()
        ms = [1e3 * of / len(test) for of in (statistics.median(seconds), min(seconds))]
        table.add_row(name, *(f"{of:.2f}" for of in ms), f"{apart:.1e}")
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
