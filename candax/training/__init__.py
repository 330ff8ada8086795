"""Training: one step, one loop, checkpoints, evaluation."""

from candax.training.checkpoints import Checkpoints
from candax.training.evaluate_dataset import evaluate_dataset
from candax.training.evaluation import evaluate
from candax.training.loop import Fitted, check_batch, fit
from candax.training.step import Program, TrainState, build

__all__ = [
    "Checkpoints",
    "Fitted",
    "Program",
    "TrainState",
    "build",
    "check_batch",
    "evaluate",
    "evaluate_dataset",
    "fit",
]
