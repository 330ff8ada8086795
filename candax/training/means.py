"""The means that a record states, of the steps since the record before; they outlast a stop."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from candax.training.trainer import WEIGHT


class Means:
    """Losses and other numbers of the steps since the last record.

    Args:
        saved: what ``to_save`` gave before the run stopped; empty at its start.
    """

    def __init__(self, saved: dict[str, Any]) -> None:
        self._saved = saved.get("found", [])
        self._steps: list[tuple[Array, dict[str, Array]]] = []
        self.examples = saved.get("examples", 0)

    def add(self, step: tuple[Array, dict[str, Array]], examples: int) -> None:
        """Counts a step in, or several with arrays ``[steps]``, which may still be on their way.

        Args:
            step: the loss, and numbers beside it.
            examples: of the steps; 0 where their time does not count, as examples per second are taken of both.
        """
        self._steps.append(step)
        self.examples += examples

    def to_save(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {"found": self._found(), "examples": self.examples}

    def of_all(self) -> dict[str, float] | None:
        """The means; None where there was no step."""
        found = self._found()
        if not found:
            return None
        names = found[0][1].keys()
        other = next((aux.keys() for _, aux in found if aux.keys() != names), None)
        if other is not None:
            raise ValueError(
                f"expected loss_fn to return numbers of the same names for all batches, got {sorted(names)} and "
                f"{sorted(other)}. For what a batch does not have, return 0 or NaN."
            )
        weights = np.array([aux.get(WEIGHT, 1.0) for _, aux in found])
        share = weights / max(weights.sum(), 1e-30)
        means = {"loss": float(np.dot(share, [loss for loss, _ in found]))}
        for name in names:
            if name != WEIGHT:
                means[name] = float(np.dot(share, [aux[name] for _, aux in found]))
        return means

    def _found(self) -> list[tuple[float, dict[str, float]]]:
        steps = jax.tree.map(np.atleast_1d, jax.device_get(self._steps))
        found = [
            (float(loss), {name: float(of[i]) for name, of in aux.items()})
            for losses, aux in steps
            for i, loss in enumerate(losses)
        ]
        # A run may go on with a loss_fn that returns other numbers.
        return [(loss, aux) for loss, aux in self._saved if not found or aux.keys() == found[0][1].keys()] + found
