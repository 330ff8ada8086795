"""How long an import takes, beside that of the libraries it stands on: medians of fresh processes, by turns.

    python benchmarks/imports.py

What it should show: `import candax` and the use of its first two layers take at most 1.3 times as long as
`import jax, flax.nnx, optax`, and `candax --help` at most 1.5 seconds.
"""

import statistics
import subprocess
import sys
import time

import tyro

LINES = {
    "jax, flax.nnx, optax": ["-c", "import jax, flax.nnx, optax"],
    "candax": ["-c", "import candax"],
    "candax, Head and Optimizer": [
        "-c",
        "import candax as cx; cx.Head, cx.Optimizer, cx.samplers.uniform, cx.losses.css",
    ],
    "candax --help": ["-m", "candax", "--help"],
}


def main(repeats: int = 7) -> None:
    """Measures and prints.

    Args:
        repeats: processes behind each median, after one that warms the disk's cache up.
    """
    times: dict[str, list[float]] = {name: [] for name in LINES}
    for _ in range(repeats + 1):
        for name, arguments in LINES.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - start)
    first = next(iter(LINES))
    for name, taken in times.items():
        ratio = statistics.median(one / other for one, other in zip(taken[1:], times[first][1:], strict=True))
        print(f"{name}: {statistics.median(taken[1:]):.2f} s, {ratio:.2f} times {first}")


if __name__ == "__main__":
    tyro.cli(main)
