"""Training: one step, on one device or class-parallel on many, one loop, checkpoints, evaluation."""

from candax.training.checkpoints import Checkpoints
from candax.training.class_parallel import build_class_parallel
from candax.training.evaluate_dataset import evaluate_dataset
from candax.training.evaluation import evaluate
from candax.training.links import evaluate_links
from candax.training.loop import BatchSource, Fitted, check_batch, fit
from candax.training.processes import connect
from candax.training.retrieval import evaluate_retrieval, exact_search, index_search
from candax.training.shards import class_mesh
from candax.training.step import Program, TrainState, build
from candax.training.verification import Verification, cosines, rank_1, verification

__all__ = [
    "BatchSource",
    "Checkpoints",
    "Fitted",
    "Program",
    "TrainState",
    "Verification",
    "build",
    "build_class_parallel",
    "check_batch",
    "class_mesh",
    "connect",
    "cosines",
    "evaluate",
    "evaluate_dataset",
    "evaluate_links",
    "evaluate_retrieval",
    "exact_search",
    "fit",
    "index_search",
    "rank_1",
    "verification",
]
