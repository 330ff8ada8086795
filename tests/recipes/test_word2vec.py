"""Training word vectors: the optimum, other samplers and losses, going on after a kill."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import candax as cx
from candax.recipes.words import training as words_training


def pairs_text(num_words=6, repeats=400, seed=0):
    """Sentences of two words from a known joint distribution; the distribution."""
    rng = np.random.default_rng(seed)
    joint = rng.uniform(0.2, 1, (num_words, num_words))
    joint = joint + joint.T + 3 * np.eye(num_words)[::-1]
    np.fill_diagonal(joint, 0)
    joint = joint / joint.sum()
    drawn = rng.choice(num_words**2, repeats * num_words, p=joint.ravel())
    sentences = [[f"w{i // num_words}", f"w{i % num_words}"] for i in drawn]
    return cx.data.words_of("pairs", sentences, min_count=1)


@pytest.mark.parametrize("k", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_full_rank_vectors_reach_pmi_minus_log_k(k):
    text = pairs_text()
    trained = cx.recipes.words.train_word2vec(
        text,
        epochs=60,
        k=k,
        dim=8,
        window=1,
        subsample=0,
        power=1.0,
        num_sampled=32,
        batch_size=256,
        optimizer=optax.adagrad,
        learning_rate=0.5,
        progress=False,
    )
    ids = np.asarray(text.ids)
    pairs = np.zeros((text.num_words, text.num_words))
    for a, b in itertools.pairwise(ids):
        if a >= 0 and b >= 0:
            pairs[a, b] += 1
            pairs[b, a] += 1
    pairs /= pairs.sum()
    share = text.counts / text.total
    fitted = trained.vectors.vectors @ trained.outputs.vectors.T
    seen = pairs > 0
    predicted = np.log(pairs[seen] / np.outer(share, share)[seen]) - np.log(k)
    np.testing.assert_allclose(fitted[seen], predicted, atol=0.35)
    assert abs(np.mean(fitted[seen] - predicted)) < 0.06


def test_the_weighted_mean_is_the_sum_over_as_many_samples():
    rng = np.random.default_rng(0)
    mask = np.array([[True, True, False], [True, False, False]])
    logits = cx.SampledLogits(
        true=jnp.float32(rng.normal(size=(2, 3))),
        true_log_expected_count=jnp.zeros((2, 3)),
        true_mask=jnp.asarray(mask),
        sampled=jnp.float32(rng.normal(size=(2, 5))),
        sampled_log_expected_count=jnp.zeros((2, 5)),
        sampled_mask=jnp.ones((2, 5), bool),
        hits=jnp.zeros((2, 5), bool),
        num_classes=9,
    )
    got = cx.recipes.words.word2vec_loss(5)(logits)
    softplus = lambda x: np.log1p(np.exp(x))  # noqa: E731
    expected = np.where(mask, softplus(-logits.true), 0).sum(1) + mask.sum(1) * softplus(logits.sampled).sum(1)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    with pytest.raises(ValueError, match="sample_weight above 0"):
        cx.losses.negative_sampling(logits, sample_weight=0.0)


OTHERS = [
    ("in_batch", cx.samplers.in_batch, cx.losses.sampled_softmax),
    ("nce", functools.partial(cx.samplers.unigram, 16), cx.losses.nce),
    ("css", functools.partial(cx.samplers.uniform, 16), cx.losses.css),
    ("hard", functools.partial(cx.samplers.top_k, 3), cx.losses.negative_sampling),
]


@pytest.mark.parametrize(
    ("name", "sampler", "loss"), [c if c[0] == "in_batch" else pytest.param(*c, marks=pytest.mark.slow) for c in OTHERS]
)
@pytest.mark.parametrize("direction", ["skipgram", pytest.param("cbow", marks=pytest.mark.slow)])
def test_other_samplers_and_losses_train_through_the_same_seams(name, sampler, loss, direction):
    trained = cx.recipes.words.train_word2vec(
        pairs_text(),
        epochs=2,
        direction=direction,
        dim=4,
        window=1,
        subsample=0,
        batch_size=64,
        sampler=sampler(),
        loss=cx.losses.each_label(loss),
        optimizer=optax.adam,
        learning_rate=0.05,
        progress=False,
    )
    assert np.all(np.isfinite(trained.vectors.vectors))
    assert np.max(np.abs(trained.outputs.vectors)) > 0.1  # they start at 0


def test_a_run_that_stopped_goes_on_to_the_same_bits(tmp_path):
    text = pairs_text(repeats=60)
    train = functools.partial(
        cx.recipes.words.train_word2vec,
        text,
        epochs=4,
        dim=4,
        subsample=0,
        batch_size=32,
        num_sampled=4,
        progress=False,
    )
    whole = train(folder=tmp_path / "whole", checkpoint_every=5)

    class Killed(Exception):
        pass

    steps = []

    class Interrupted(cx.data.WindowBatches):
        def __getitem__(self, position):
            steps.append(position)
            if len(steps) == 14:
                raise Killed
            return super().__getitem__(position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words_training, "WindowBatches", Interrupted)
        with pytest.raises(Killed):
            train(folder=tmp_path / "broken", checkpoint_every=5)
    again = train(folder=tmp_path / "broken", checkpoint_every=5)
    np.testing.assert_array_equal(whole.vectors.vectors, again.vectors.vectors)
    np.testing.assert_array_equal(whole.outputs.vectors, again.outputs.vectors)
    with pytest.raises(ValueError, match="num_steps was"):
        cx.recipes.words.train_word2vec(
            text, epochs=5, dim=4, subsample=0, batch_size=32, progress=False, folder=tmp_path / "broken"
        )


def test_texts_and_numbers_that_do_not_do_are_refused():
    short = cx.data.words_of("short", [["a", "b"]], min_count=1)
    with pytest.raises(ValueError, match="Give more text"):
        cx.recipes.words.train_word2vec(short, progress=False)
    text = pairs_text(repeats=60)
    for options in ({"epochs": 0}, {"dim": 0}, {"k": 0}, {"learning_rate": -1.0}):
        with pytest.raises(ValueError, match="expected"):
            cx.recipes.words.train_word2vec(text, progress=False, **options)


def test_batches_are_small_where_texts_are_short_or_a_word_is_in_all_of_them():
    even = cx.data.words_of("even", [[f"w{i}" for i in range(200)]] * 400, min_count=1)
    skewed = cx.data.words_of("skewed", [["the", f"w{i}", f"w{i + 1}"] for i in range(200)] * 100, min_count=1)
    assert cx.recipes.words.word2vec_batches(even, subsample=0).batch_size == 1024
    assert cx.recipes.words.word2vec_batches(skewed, subsample=0).batch_size == 32
    assert cx.recipes.words.word2vec_batches(pairs_text(repeats=60)).batch_size == 16


def test_more_draws_than_words_are_no_obstacle():
    trained = cx.recipes.words.train_word2vec(
        pairs_text(repeats=60), epochs=1, k=50, num_sampled=64, dim=2, progress=False
    )
    assert np.all(np.isfinite(trained.vectors.vectors))
