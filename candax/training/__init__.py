"""Training: one step, on one device or many, one loop, checkpoints, evaluation."""

from candax.training.checkpoints import Checkpoints
from candax.training.evaluate_dataset import evaluate_dataset
from candax.training.evaluation import embed, evaluate
from candax.training.feed import BatchSource
from candax.training.loop import fit
from candax.training.processes import class_mesh, connect
from candax.training.program import Program, TrainState, build, fit_program
from candax.training.run import Fitted
from candax.training.saved import Loaded, export, load
from candax.training.stopping import Interrupted
from candax.training.validation import Validation, mean_over
from candax.training.verification import Verification, cosines, rank_1, verification

__all__ = [
    "BatchSource",
    "Checkpoints",
    "Fitted",
    "Interrupted",
    "Loaded",
    "Program",
    "TrainState",
    "Validation",
    "Verification",
    "build",
    "class_mesh",
    "connect",
    "cosines",
    "embed",
    "evaluate",
    "evaluate_dataset",
    "export",
    "fit",
    "fit_program",
    "load",
    "mean_over",
    "rank_1",
    "verification",
]
