"""Corpora and batches of sentences."""

import numpy as np
import pytest

from candax.data import Corpus, SentenceBatches, corpus_of, sentence_batch, sentences_in_order


def make(num_sentences=50, seed=0) -> Corpus:
    rng = np.random.default_rng(seed)
    letters = [chr(ord("a") + i) for i in range(20)]
    lengths = rng.integers(1, 40, num_sentences)
    return corpus_of("made", [list(rng.choice(letters, n)) for n in lengths], min_count=1)


def test_rare_words_leave_and_long_or_empty_sentences_go():
    sentences = [["a", "b", "rare", "a"], ["a"] * 5, ["rare2"], [], ["b", "b"]]
    corpus = corpus_of("x", sentences, min_count=3, max_length=3)
    assert [corpus.words[i] for i in corpus.ids] == ["a", "b", "a", "</s>", "b", "b", "</s>"]
    assert corpus.words == ("b", "</s>", "a")  # by their counts in what is kept
    np.testing.assert_array_equal(corpus.counts, [3, 2, 2])
    assert len(corpus) == 2
    assert corpus.start == corpus.num_classes == 3


def test_nothing_left_is_an_error():
    with pytest.raises(ValueError, match="got </s>, which ends a sentence"):
        corpus_of("x", [["a", "</s>", "b"]], min_count=1)
    with pytest.raises(ValueError, match="found none among 2 sentences"):
        corpus_of("x", [["a"], ["b"]], min_count=2)


def test_a_batch_reads_one_word_behind_what_it_predicts():
    corpus = corpus_of("x", [["a", "b"], ["c"]], min_count=1)
    batch = sentence_batch(corpus, np.array([0, 1]))
    labels = batch.labels.reshape(batch.words.shape)
    assert batch.words.dtype == batch.labels.dtype == np.int32
    a, b, c, end = (corpus.words.index(word) for word in ("a", "b", "c", "</s>"))
    assert labels[:, :4].tolist() == [[a, b, end, -1], [c, end, -1, -1]]
    assert batch.words[:, :4].tolist() == [[corpus.start, a, b, -1], [corpus.start, c, -1, -1]]
    assert np.all(labels[:, 4:] == -1)


def test_an_epoch_visits_every_sentence_once_but_the_remainder():
    corpus = make(53)
    batches = SentenceBatches(corpus, 8, seed=3)
    assert batches.batches_per_epoch == 6
    orders = []
    for epoch in range(2):
        seen = [batches[epoch, i] for i in range(6)]
        # Sentences are told apart by their words.
        rows = [tuple(row[row >= 0]) for batch in seen for row in batch.labels.reshape(8, -1)]
        all_rows = [tuple(corpus.ids[a:b]) for a, b in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True)]
        assert len(rows) == 48
        assert set(rows) <= set(all_rows)
        assert len(set(rows)) >= 46  # sentences of one word may be equal
        orders.append(rows)
    assert orders[0] != orders[1]
    assert sum(batch.words.size for batch in seen) < 2 * len(corpus.ids)  # like lengths stand together


def test_batches_depend_on_seed_epoch_and_index_alone():
    corpus = make()
    one, other = SentenceBatches(corpus, 8, 1), SentenceBatches(corpus, 8, 1)
    one[0, 2], one[4, 0]
    np.testing.assert_array_equal(one[2, 3].words, other[2, 3].words)
    assert one.identity == other.identity
    assert one.identity != SentenceBatches(make(seed=1), 8, 1).identity
    with pytest.raises(IndexError, match="index 6"):
        one[0, 6]


@pytest.mark.parametrize(("batch_size", "seed", "message"), [(0, 0, "from 1 to 50"), (51, 0, "51"), (5, -1, "seed")])
def test_bad_settings_are_refused(batch_size, seed, message):
    with pytest.raises(ValueError, match=message):
        SentenceBatches(make(), batch_size, seed)


def test_in_order_covers_everything_and_fills_up_with_nothing():
    corpus = make(21)
    batches = list(sentences_in_order(corpus, np.arange(21), 8))
    assert [len(batch.words) for batch in batches] == [8, 8, 8]
    words = np.concatenate([batch.labels[batch.labels >= 0] for batch in batches])
    np.testing.assert_array_equal(np.sort(words), np.sort(corpus.ids))
    assert np.all(batches[-1].words[5:] == -1)


def test_sentences_longer_than_any_fixed_length_fit():
    corpus = corpus_of("x", [["a"] * 100], min_count=1, max_length=100)
    batch = sentence_batch(corpus, np.array([0]))
    assert (batch.labels >= 0).sum() == 101
