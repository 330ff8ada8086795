"""Flax NNX models: encoders, the head, and the two together."""

from candax.models.classifier import Classifier
from candax.models.gru import GRULanguageModel
from candax.models.links import LinkEncoder
from candax.models.lstm import LSTMLanguageModel, TextPart
from candax.models.mlp import DenseMLP, SparseMLP
from candax.models.projection import RandomProjection
from candax.models.scoring import find_hits
from candax.models.transformer import SequenceEncoder, TransformerBlock, TransformerLanguageModel
from candax.models.windows import window_logits, window_sums
from candax.models.word2vec import CBOW, SkipGram

__all__ = [
    "CBOW",
    "Classifier",
    "DenseMLP",
    "GRULanguageModel",
    "LSTMLanguageModel",
    "LinkEncoder",
    "RandomProjection",
    "SequenceEncoder",
    "SkipGram",
    "SparseMLP",
    "TextPart",
    "TransformerBlock",
    "TransformerLanguageModel",
    "find_hits",
    "window_logits",
    "window_sums",
]
