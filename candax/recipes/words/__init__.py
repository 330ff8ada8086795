"""Word vectors as word2vec trains them, and how good they are."""

from candax.recipes.words.scores import Analogies, Similarity, word_analogies, word_similarity
from candax.recipes.words.training import (
    Trained,
    train_word2vec,
    word2vec_batches,
    word2vec_loss,
    word2vec_model,
    word2vec_step_loss,
)

__all__ = [
    "Analogies",
    "Similarity",
    "Trained",
    "train_word2vec",
    "word2vec_batches",
    "word2vec_loss",
    "word2vec_model",
    "word2vec_step_loss",
    "word_analogies",
    "word_similarity",
]
