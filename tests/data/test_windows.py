"""Batches of windows."""

import numpy as np
import pytest

from candax.data import WindowBatches, words_of


def make(num_words=40, sentences=60, text_seed=0, **options):
    rng = np.random.default_rng(text_seed)
    share = 1 / np.arange(1, num_words + 1)
    drawn = [rng.choice(num_words, rng.integers(1, 30), p=share / share.sum()) for _ in range(sentences)]
    text = words_of("made", [[f"w{i}" for i in sentence] for sentence in drawn], min_count=1)
    defaults = {"batch_size": 64, "seed": 3, "window": 3, "run_length": 16, "subsample": 0.0}
    return text, WindowBatches(text, **{**defaults, **options})


def expected_labels(words, window):
    """Widest windows by a plain loop: [R, L, T], no distinctness."""
    runs, length = words.shape
    labels = np.full((runs, length, 2 * window), -1)
    offsets = [*range(-window, 0), *range(1, window + 1)]
    for r in range(runs):
        for i in range(length):
            for slot, offset in enumerate(offsets):
                between = range(min(i, i + offset), max(i, i + offset) + 1)
                if all(0 <= j < length and words[r, j] >= 0 for j in between):
                    labels[r, i, slot] = words[r, i + offset]
    return labels


def test_labels_are_the_words_around_within_sentence_run_and_reach():
    _, batches = make()
    seen = np.zeros(4)
    for index in range(batches.batches_per_epoch):
        batch = batches[0, index]
        assert batch.words.dtype == batch.labels.dtype == np.int32
        widest = expected_labels(batch.words, 3)
        labels = batch.labels.reshape(widest.shape)
        for r, i in np.ndindex(batch.words.shape):
            got, most = labels[r, i], widest[r, i]
            real = got >= 0
            np.testing.assert_array_equal(got[real], most[real])
            assert len(set(got[real])) == real.sum()
            # Some reach explains what is there: within it all words of the widest window, but repeated ones.
            reaches = [
                reach
                for reach in (1, 2, 3)
                if set(got[real]) == set(most[3 - reach : 3 + reach]) - {-1} and not real[: 3 - reach].any()
            ]
            assert reaches, (got, most)
            if len(set(most)) == 6 and (most >= 0).all():
                seen[real.sum() // 2] += 1
    # Reaches are uniform on 1 ... 3.
    assert seen[0] == 0
    assert np.all(seen[1:] > 0.2 * seen.sum())


@pytest.mark.parametrize("window", [5, 100, 127])
def test_every_reach_is_as_frequent(window):
    _, batches = make(sentences=2000, window=window)
    reach = np.concatenate([batches._shard(epoch, 0)[1].ravel() for epoch in range(4)])
    counts = np.bincount(reach, minlength=window + 1)
    assert counts[0] == 0
    expected = len(reach) / window
    # Chi-squared: its standard deviation is sqrt(2 (window - 1)).
    assert np.sum((counts[1:] - expected) ** 2) / expected < window - 1 + 4 * np.sqrt(2 * (window - 1))
    assert batches.identity["windows"] == 2


def test_cbow_has_the_same_windows():
    _, skip = make()
    _, cbow = make(direction="cbow")
    one, other = skip[1, 2], cbow[1, 2]
    np.testing.assert_array_equal(one.words, other.words)
    labels = one.labels.reshape(*one.words.shape, 6)
    widest = expected_labels(one.words, 3)
    assert np.all(other.neighbours[labels >= 0])  # CBOW keeps repeated words
    assert np.all(widest[other.neighbours] >= 0)
    expected = np.where(other.neighbours.any(2), other.words, -1).reshape(-1, 1)
    np.testing.assert_array_equal(other.labels, expected)


def test_an_epoch_visits_every_place_once_but_the_last_ones():
    text, batches = make(shard_size=200)
    assert batches.batches_per_epoch == sum(len(text.ids[i : i + 200]) // 64 for i in range(0, len(text.ids), 200))
    firsts = []
    for epoch in range(2):
        words = np.concatenate([batches[epoch, i].words.ravel() for i in range(batches.batches_per_epoch)])
        counts = np.bincount(words[words >= 0], minlength=text.num_words)
        assert np.all(counts <= text.counts)
        assert len(words) == 64 * batches.batches_per_epoch
        firsts.append(words[:64].tolist())
    assert firsts[0] != firsts[1]


def test_frequent_words_are_dropped_at_their_rate():
    text, batches = make(sentences=2000, subsample=0.01)
    share = text.counts / text.total
    np.testing.assert_allclose(batches.keep_probability, np.minimum(1, np.sqrt(0.01 / share) + 0.01 / share))
    kept = np.zeros(text.num_words)
    for epoch in range(4):
        for index in range(batches.batches_per_epoch):
            words = batches[epoch, index].words
            kept += np.bincount(words[words >= 0], minlength=text.num_words)
    # About 4 % of a text so short fill no batch: relative to the rarest words, which are always kept.
    rare = batches.keep_probability == 1
    seen = kept / text.counts / (kept[rare].sum() / text.counts[rare].sum())
    np.testing.assert_allclose(seen[:5], batches.keep_probability[:5], rtol=0.08)


def test_batches_depend_on_seed_epoch_and_index_alone():
    _, one = make(subsample=0.05)
    _, other = make(subsample=0.05)
    one[0, 1], one[3, 0]
    for a, b in zip(one[2, 3], other[2, 3], strict=True):
        np.testing.assert_array_equal(a, b)
    assert one.identity == other.identity
    assert one.identity != make(text_seed=1)[1].identity
    assert one.identity != make(window=2)[1].identity
    with pytest.raises(IndexError):
        one[0, one.batches_per_epoch]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 60}, "multiple of run_length"),
        ({"window": 0}, "window from 1 to 127"),
        ({"window": 200}, "window from 1 to 127"),
        ({"subsample": -1.0}, "subsample"),
        ({"seed": -1}, "seed"),
        ({"batch_size": 1 << 20}, "one batch"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
