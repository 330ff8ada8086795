"""Pictures of experiments: axes side by side in one file, written atomically and without a display."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from candax.files import replacing


@contextlib.contextmanager
def save_picture(path: Path, *, columns: int, size: tuple[float, float], share_y: bool) -> Iterator[Any]:
    """Hands out an array of axes and writes the picture when the block ends.

    Args:
        path: of the PNG file.
        columns: axes side by side.
        size: width and height in inches.
        share_y: whether all axes have one vertical scale.
    """
    figure, axes = plt.subplots(1, columns, figsize=size, sharey=share_y, layout="constrained", squeeze=False)
    try:
        yield axes[0]
        for axis in axes[0]:
            axis.grid(alpha=0.3)
        with replacing(path) as file:
            figure.savefig(file, dpi=120, format="png")
    finally:
        plt.close(figure)
