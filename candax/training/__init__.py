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
from candax.training.word2vec import Trained, train_word2vec, word2vec_batches, word2vec_loss, word2vec_program
from candax.training.word_scores import Analogies, Similarity, word_analogies, word_similarity

__all__ = [
    "Analogies",
    "BatchSource",
    "Checkpoints",
    "Fitted",
    "Program",
    "Similarity",
    "TrainState",
    "Trained",
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
    "train_word2vec",
    "verification",
    "word2vec_batches",
    "word2vec_loss",
    "word2vec_program",
    "word_analogies",
    "word_similarity",
]
