"""Checkpoints of a run with orbax: atomic, kept to a number, restored whole or refused with a reason."""

import json
import logging
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import orbax.checkpoint as ocp

from candax.training.step import TrainState

# Orbax reports every save and restore on the absl logger, in the middle of progress bars.
logging.getLogger("absl").setLevel(logging.ERROR)


class Checkpoints:
    """The checkpoints of one run, in ``folder/checkpoints``; a context manager.

    Args:
        folder: of the run; created where missing.
        identity: what must be the same for a run to go on: JSON values by name (seed, batch size, data set ...).
        keep: how many checkpoints are kept, the newest.

    Raises:
        ValueError: if ``folder`` holds a run of another identity.
    """

    def __init__(self, folder: str | Path, *, identity: dict[str, Any], keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"expected to keep at least 1 checkpoint, got keep={keep}.")
        self.folder = Path(folder).absolute()
        self._identity = json.loads(json.dumps(identity))
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(self.folder / "checkpoints", options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager.close()

    @property
    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint, None where there is none."""
        return self._manager.latest_step()

    def save(self, state: TrainState, position: dict[str, int]) -> None:
        """Writes a checkpoint; it appears under its name only once it is complete."""
        about = {"identity": self._identity, "position": position}
        args = ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(about))
        self._manager.save(int(state.step), args=args, force=True)

    def restore(self, like: TrainState) -> TrainState:
        """The newest checkpoint, with the structure, shapes, dtypes and sharding of ``like``."""
        step = self.latest_step
        if step is None:
            raise ValueError(f"expected a checkpoint in {self.folder / 'checkpoints'}, found none. Train first.")
        about = self._manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
        self._check_identity(about["identity"])
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        restored = self._manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)))
        return restored["state"]

    def _check_identity(self, found: dict[str, Any]) -> None:
        names = sorted(set(found) | set(self._identity))
        different = [n for n in names if found.get(n) != self._identity.get(n)]
        if different:
            listing = ", ".join(f"{n} was {found.get(n)!r} and is {self._identity.get(n)!r}" for n in different)
            raise ValueError(
                f"{self.folder} holds a run with other settings: {listing}. "
                "Continue it with its own settings or choose another folder."
            )
