"""Data sets, corpora and their batches, from the user's files and from Python's own standard library."""

import os

from candax.checks import checked
from candax.data.batches import Batch, Batches, evaluation_batches
from candax.data.corpus import Corpus, SentenceBatch, SentenceBatches, corpus_of, sentence_batch, sentences_in_order
from candax.data.examples import Dataset, Examples
from candax.data.flat import FlatBatch
from candax.data.flattening import distance_from_uniform, flatten_labels
from candax.data.graphs import Graph, Triple, graph, graph_of
from candax.data.identities import Identities, IdentityBatch, IdentityBatches, Pairs
from candax.data.interactions import Interactions, Row, interactions_of
from candax.data.label_counts import LabelCounts, label_counts_of
from candax.data.prefetching import prefetch
from candax.data.python_links import python_graph, python_interactions
from candax.data.python_stdlib import python_stdlib
from candax.data.questions import (
    Answers,
    KnownAnswers,
    QuestionBatch,
    QuestionBatches,
    questions_in_order,
    questions_of,
)
from candax.data.text import python_corpus, text_corpus
from candax.data.weighting import tf_idf
from candax.data.windows import CBOWBatch, SkipGramBatch, WindowBatches
from candax.data.word_vectors import WordVectors
from candax.data.words import Words, text_words, words_of
from candax.data.xml_repository import xml_repository

__all__ = [
    "Answers",
    "Batch",
    "Batches",
    "CBOWBatch",
    "Corpus",
    "Dataset",
    "Examples",
    "FlatBatch",
    "Graph",
    "Identities",
    "IdentityBatch",
    "IdentityBatches",
    "Interactions",
    "KnownAnswers",
    "LabelCounts",
    "Pairs",
    "QuestionBatch",
    "QuestionBatches",
    "Row",
    "SentenceBatch",
    "SentenceBatches",
    "SkipGramBatch",
    "Triple",
    "WindowBatches",
    "WordVectors",
    "Words",
    "corpus_of",
    "distance_from_uniform",
    "evaluation_batches",
    "flatten_labels",
    "graph",
    "graph_of",
    "interactions_of",
    "label_counts_of",
    "load",
    "prefetch",
    "python_corpus",
    "python_graph",
    "python_interactions",
    "python_stdlib",
    "questions_in_order",
    "questions_of",
    "sentence_batch",
    "sentences_in_order",
    "text_corpus",
    "text_words",
    "tf_idf",
    "words_of",
    "xml_repository",
]


@checked
def load(name_or_folder: str | os.PathLike[str]) -> Dataset:
    """Loads a data set: the first time from its source, later from the cache.

    Args:
        name_or_folder: ``"python-stdlib"``, or a folder with a training and a test file in the text format of the
            Extreme Classification Repository.

    Returns:
        The data set.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> load("no-such-data")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: no data set 'no-such-data': expected 'python-stdlib' or a folder with a training and a test file ...
    """
    name = os.fspath(name_or_folder)
    if name == "python-stdlib":
        return python_stdlib()
    if os.path.isdir(name):
        return xml_repository(name)
    raise ValueError(
        f"no data set {name!r}: expected 'python-stdlib' or a folder with a training and a test file in the text "
        "format of the Extreme Classification Repository (train.txt and test.txt, plain or .gz, .bz2, .xz, .zst); "
        "there is no folder of this name"
    )
