"""A corpus of sentences as word ids, and its batches."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64

from candax.checks import check_positive, checked
from candax.data.epochs import EpochBatches, keep_last, shuffled
from candax.files import digest_of

END = "</s>"
# A branch of the seed's random streams; the order uses 0.
_VISITS = 1
# Lengths that batches are padded to: each costs a compilation, and on average a quarter of the places is empty.
LENGTHS = (8, 16, 24, 36, 52, 71)


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Sentences as ids of words to predict, each closed by the word ``</s>``.

    Args:
        name: what tables and pictures call it.
        words: one name per id, the most frequent first; ``</s>`` is one of them.
        ids: the ids of all sentences, one sentence after the other.
        offsets: where each sentence begins in ``ids``, and where the last one ends.

    Example:
        >>> corpus = corpus_of("tiny", [["b", "a", "b"], ["b"]], min_count=1)
        >>> corpus.words, corpus.ids.tolist(), corpus.offsets.tolist()
        (('b', '</s>', 'a'), [0, 2, 0, 1, 0, 1], [0, 4, 6])
    """

    name: str
    words: tuple[str, ...]
    ids: Int32[np.ndarray, " tokens"]
    offsets: Int64[np.ndarray, " N_plus_1"]

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.offsets) - 1

    @property
    def num_classes(self) -> int:
        """Words that can be predicted, ``</s>`` among them."""
        return len(self.words)

    @property
    def start(self) -> int:
        """The id that is read before every sentence; no word has it, as it is never predicted."""
        return len(self.words)

    @functools.cached_property
    def lengths(self) -> Int64[np.ndarray, " N"]:
        """The number of words in each sentence, ``</s>`` included."""
        return np.diff(self.offsets)

    @functools.cached_property
    def counts(self) -> Float32[np.ndarray, "num_classes"]:
        """Occurrences of each word."""
        return np.bincount(self.ids, minlength=self.num_classes).astype(np.float32)


@checked
def corpus_of(name: str, sentences: Iterable[Sequence[str]], *, min_count: int = 4, max_length: int = 70) -> Corpus:
    """Makes a corpus: rare words are removed, and sentences that are then still too long, or empty, are left out.

    Args:
        name: of the corpus.
        sentences: the words of each sentence.
        min_count: words that occur less often are removed.
        max_length: words of the longest sentence that is kept, after the removal and without ``</s>``.

    Returns:
        The corpus; words are ranked by their occurrences in the sentences kept, ties in alphabetical order.

    Raises:
        ValueError: if nothing is left, or ``</s>`` is among the words.

    Example:
        >>> corpus_of("tiny", [["a", "b"], ["a"]], min_count=2).words
        ('</s>', 'a')
    """
    check_positive("min_count", min_count)
    sentences = [list(sentence_of_words(sentence)) for sentence in sentences]
    occurrences = Counter(word for sentence in sentences for word in sentence)
    if END in occurrences:
        raise ValueError(f"{name}: expected words, got {END}, which ends a sentence: leave it out, it is put there.")
    frequent = {word for word, count in occurrences.items() if count >= min_count}
    kept = [[word for word in sentence if word in frequent] for sentence in sentences]
    kept = [[*sentence, END] for sentence in kept if 0 < len(sentence) <= max_length]
    if not kept:
        raise ValueError(
            f"{name}: expected sentences of up to {max_length} words that occur {min_count} times or more, found none "
            f"among {len(sentences)} sentences. Give more text, or lower the minimum count."
        )
    counts = Counter(word for sentence in kept for word in sentence)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    id_of = {word: i for i, word in enumerate(words)}
    ids = np.fromiter((id_of[word] for sentence in kept for word in sentence), np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(sentence) for sentence in kept])])
    return Corpus(name, tuple(words), ids, offsets.astype(np.int64))


class SentenceBatch(NamedTuple):
    """B sentences of up to L words: what is read, and what follows.

    Attributes:
        words: the start and all words but the last; padded with -1.
        labels: the words; padded with -1. Every place is an example, sentence by sentence.
    """

    words: Int32[np.ndarray, "B L"]
    labels: Int32[np.ndarray, "BL 1"]


class SentenceBatches(EpochBatches[SentenceBatch]):
    """The training batches of all epochs: ``batches[epoch, index]``.

    An epoch takes the sentences in an order of its own, leaves out the last ``N mod batch_size`` of it, puts sentences
    of like length together, and visits these batches in random order.

    Args:
        corpus: where the sentences come from.
        batch_size: sentences per batch.
        seed: a non-negative integer; with epoch and index it determines a batch, on any machine.

    Raises:
        ValueError: if there are fewer sentences than one batch takes, or a number is out of range.

    Example:
        >>> corpus = corpus_of("tiny", [["b", "a", "b"], ["b"]], min_count=1)
        >>> SentenceBatches(corpus, batch_size=2, seed=0)[0, 0].words.shape
        (2, 8)
    """

    @checked
    def __init__(self, corpus: Corpus, batch_size: int, seed: int) -> None:
        super().__init__(len(corpus), batch_size, seed, "sentences")
        self.corpus = corpus

    def batch(self, epoch: int, index: int) -> SentenceBatch:
        """The batch at a position that exists."""
        return sentence_batch(self.corpus, self._sentences(epoch)[index])

    @keep_last
    def _sentences(self, epoch: int) -> Int64[np.ndarray, "batches batch_size"]:
        """The sentences of every batch of an epoch."""
        taken = self.order(epoch)[: self.batches_per_epoch * self.batch_size]
        by_length = taken[np.argsort(_padded_length(self.corpus.lengths[taken]), kind="stable")]
        visits = shuffled(self.seed, epoch, self.batches_per_epoch, (_VISITS,))
        return by_length.reshape(self.batches_per_epoch, self.batch_size)[visits]

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All that the batches depend on, as JSON values: equal identities give equal batches."""
        sizes = {"num_sentences": len(self.corpus), "num_classes": self.corpus.num_classes}
        return self.described(**sizes, corpus_digest=digest_of(self.corpus.ids, self.corpus.offsets))


@checked
def sentence_batch(corpus: Corpus, sentences: Int64[np.ndarray, " B"]) -> SentenceBatch:
    """The batch of the sentences of these numbers, padded to one of a few lengths."""
    lengths = corpus.lengths[sentences]
    longest = int(_padded_length(lengths).max(initial=LENGTHS[0]))
    places = np.arange(longest)
    real = places < lengths[:, None]
    at = np.minimum(corpus.offsets[sentences][:, None] + places, max(0, len(corpus.ids) - 1))
    labels = np.where(real, corpus.ids[at], np.int32(-1))
    words = np.concatenate([np.full((len(sentences), 1), corpus.start, np.int32), labels[:, :-1]], axis=1)
    return SentenceBatch(np.where(real, words, np.int32(-1)), labels.reshape(-1, 1))


@checked
def sentences_in_order(corpus: Corpus, sentences: Int64[np.ndarray, " n"], batch_size: int) -> Iterator[SentenceBatch]:
    """Batches of these sentences, short ones first, the last batch filled up with empty sentences."""
    check_positive("batch_size", batch_size)
    by_length = sentences[np.argsort(corpus.lengths[sentences], kind="stable")]
    for start in range(0, len(by_length), batch_size):
        batch = sentence_batch(corpus, by_length[start : start + batch_size])
        missing = batch_size - len(batch.words)
        words = np.pad(batch.words, ((0, missing), (0, 0)), constant_values=-1)
        labels = np.pad(batch.labels, ((0, missing * words.shape[1]), (0, 0)), constant_values=-1)
        yield SentenceBatch(words, labels)


def sentence_of_words(sentence: Sequence[str]) -> Sequence[str]:
    """The sentence as it is; raises ValueError for a text that was not split into words."""
    if isinstance(sentence, str):
        raise ValueError(f"expected each sentence to be a sequence of words, got the text {sentence[:40]!r}. Split it.")
    return sentence


def _padded_length(lengths: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """The smallest length that is long enough: one of LENGTHS or, beyond these, a multiple of the last of them."""
    small = np.asarray(LENGTHS)[np.minimum(np.searchsorted(LENGTHS, lengths), len(LENGTHS) - 1)]
    return np.where(lengths <= LENGTHS[-1], small, -(-lengths // LENGTHS[-1]) * LENGTHS[-1])
