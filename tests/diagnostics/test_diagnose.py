"""Measures against closed forms, and against enumeration of every candidate set in NumPy."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.diagnostics import Method, diagnose, pairs
from candax.diagnostics.diagnosing import _wide
from candax.diagnostics.result import MEASURES
from tests.diagnostics.problems import problem

KEY = jax.random.key(5)


def method(sampler, loss, name="css"):
    return Method("sampler", name, sampler, loss)


def agree(measure, truth, *, at=(0, 0), within=None):
    """Truth lies within 5 standard errors, and those are small enough to see a difference of ``within``."""
    value, error = measure.value[at], measure.standard_error[at]
    assert abs(value - truth) < 5 * error, f"{value} +- {error} is not {truth}"
    if within is not None:
        assert 5 * error < within


def logits_of(classes, embeddings):
    """Logits in float64 [B, num_valid]."""
    valid = int(classes.num_valid)
    logits = np.asarray(embeddings, np.float64) @ np.asarray(classes.vectors, np.float64)[:valid].T
    return logits if classes.biases is None else logits + np.asarray(classes.biases, np.float64)[:valid]


def with_counts_times(factor):
    """A uniform sampler that misstates its counts: what a wrong correction looks like."""

    def make(num_sampled):
        right = cx.samplers.uniform(num_sampled)

        def sample(state, key, query):
            drawn = right.sample(state, key, query)
            return dataclasses.replace(drawn, log_expected_count=drawn.log_expected_count + jnp.log(factor))

        return right._replace(sample=sample)

    return make


def test_css_is_unbiased_for_z_and_a_bias_of_5_percent_is_seen():
    data = problem()
    methods = [
        Method("right", "css", cx.samplers.uniform, cx.losses.css),
        Method("wrong", "css", with_counts_times(1 / 1.06), cx.losses.css),
    ]
    result = diagnose(*data, methods, num_sampled=[20], num_draws=6000, key=KEY)
    agree(result.z_bias, 0, within=0.05)
    assert result.z_bias.value[1, 0] > 5 * result.z_bias.standard_error[1, 0]
    # Jensen: the log of an unbiased estimate is too small, the probability on average too large.
    assert result.log_z_bias.value[0, 0] < -5 * result.log_z_bias.standard_error[0, 0]
    assert result.p_true_bias.value[0, 0] > 5 * result.p_true_bias.standard_error[0, 0]


def test_css_variance_is_its_closed_form():
    classes, embeddings, labels = problem(num_classes=30)
    num_sampled = 12
    weights = np.exp(logits_of(classes, embeddings))
    others = weights.copy()
    np.put_along_axis(others, labels, 0, axis=1)
    # Z_hat = exp(o_y) + (1 / S) sum_s N exp(o_s) 1{s is no label}
    variance = (30 * others).var(axis=1) / num_sampled
    truth = np.mean(variance / weights.sum(axis=1) ** 2)
    methods = [method(cx.samplers.uniform, cx.losses.css)]
    result = diagnose(classes, embeddings, labels, methods, num_sampled=[num_sampled], num_draws=4000, key=KEY)
    agree(result.z_variance, truth, within=0.2 * truth)
    agree(result.z_relative_error, np.sqrt(truth), within=0.1 * np.sqrt(truth))


@pytest.mark.parametrize("num_labels", [1, 2])
def test_every_class_as_candidate_leaves_no_error(num_labels):
    classes, embeddings, labels = problem(num_classes=25, num_labels=num_labels, padding=3)
    methods = pairs({"top_k": cx.samplers.top_k}, {"css": cx.losses.css})
    result = diagnose(classes, embeddings, labels, methods, num_sampled=[25], num_draws=400, key=KEY, top_k=5)
    for name in MEASURES:
        value = getattr(result, name).value[0, 0]
        if name.endswith(("cosine", "share")):
            assert value == pytest.approx(1, abs=1e-6)
        elif name == "optimum_bias":  # an estimate also here: labels are drawn from the model
            assert value <= min(0.1, 4 * result.optimum_bias.standard_error[0, 0])
        elif name.endswith(("bias", "variance", "error")):
            assert abs(value) < 1e-5, name
    assert result.num_candidates.value[0, 0] == 25
    weights = np.exp(logits_of(classes, embeddings))
    for row, ids in zip(weights, labels, strict=True):
        row[ids[ids >= 0]] = 0
    effective = np.mean(weights.sum(axis=1) ** 2 / (weights**2).sum(axis=1))
    assert result.effective_sample_size.value[0, 0] == pytest.approx(effective, rel=1e-5)


def enumerate_sampled_softmax(classes, embeddings, labels, num_sampled):
    """Every equally likely candidate set: errors of log Z [sets, B], p(true) [B], gradients [sets, ...] and exact."""
    logits = logits_of(classes, embeddings)
    num_classes = logits.shape[1]
    vectors = np.asarray(classes.vectors, np.float64)[:num_classes]
    log_count = np.log(num_sampled / num_classes)
    target = np.stack([np.isin(np.arange(num_classes), ids) / np.sum(ids >= 0) for ids in labels])
    mean_true = np.sum(target * logits, axis=1)
    log_z = np.log(np.exp(logits).sum(axis=1))

    def gradients(to_logits):
        to_logits = to_logits / len(logits)
        to_classes = np.concatenate([to_logits.T @ embeddings, to_logits.sum(axis=0)[:, None]], axis=1)
        return (to_logits @ vectors).ravel(), to_classes.ravel()

    errors, of_sets = [], []
    for drawn in itertools.product(range(num_classes), repeat=num_sampled):
        multiplicity = np.bincount(drawn, minlength=num_classes)
        # True classes once each, others as often as they were drawn; all lose the log of the same count.
        weights = np.where(target > 0, 1, multiplicity) * np.exp(logits - log_count)
        total = weights.sum(axis=1)
        loss = np.log(total) - (mean_true - log_count)
        errors.append(loss + mean_true - log_z)
        of_sets.append(gradients(weights / total[:, None] - target))
    full = gradients(np.exp(logits - log_z[:, None]) - target)
    stacked = [np.stack(part) for part in zip(*of_sets, strict=True)]
    return np.stack(errors), np.exp(mean_true - log_z), log_z, stacked, full


@pytest.mark.parametrize("num_labels", [1, 2])
def test_sampled_softmax_against_enumeration_of_all_candidate_sets(num_labels):
    classes, embeddings, labels = problem(num_classes=6, dim=3, batch=3, num_labels=num_labels)
    errors, p, log_z, gradients, full = enumerate_sampled_softmax(classes, embeddings, labels, num_sampled=3)
    methods = [method(cx.samplers.uniform, cx.losses.sampled_softmax)]
    result = diagnose(classes, embeddings, labels, methods, num_sampled=[3], num_draws=4000, key=KEY, top_k=2)
    ratio = np.exp(errors)
    rms = np.sqrt(np.mean(errors**2))
    agree(result.z_bias, ratio.mean() - 1, within=0.05)
    agree(result.z_variance, ratio.var(axis=0).mean(), within=0.05)
    agree(result.z_relative_error, np.sqrt(np.mean((ratio - 1) ** 2)), within=0.05)
    agree(result.log_z_bias, errors.mean(), within=0.05)
    agree(result.log_z_variance, errors.var(axis=0).mean(), within=0.05)
    agree(result.log_z_error, rms, within=0.05)
    agree(result.log_z_relative_error, rms / np.sqrt(np.mean(log_z**2)), within=0.05)
    agree(result.p_true_bias, np.mean(p * (1 / ratio - 1)), within=0.05)
    agree(result.p_true_variance, (p / ratio).var(axis=0).mean(), within=0.05)
    agree(result.p_true_relative_error, np.sqrt(np.mean((1 / ratio - 1) ** 2)), within=0.2)
    for name, drawn, exact in zip(("embedding", "class"), gradients, full, strict=True):
        square = np.sum(exact**2)
        cosines = drawn @ exact / np.linalg.norm(drawn, axis=1) / np.sqrt(square)
        squared_bias = np.sum((drawn.mean(axis=0) - exact) ** 2) / square
        agree(getattr(result, f"{name}_gradient_squared_bias"), squared_bias, within=0.1)
        agree(getattr(result, f"{name}_gradient_bias"), np.sqrt(squared_bias), within=0.1)
        error = np.sqrt(np.mean(np.sum((drawn - exact) ** 2, axis=1)) / square)
        agree(getattr(result, f"{name}_gradient_error"), error, within=0.05)
        agree(getattr(result, f"{name}_gradient_cosine"), cosines.mean(), within=0.05)


def test_gradient_bias_tells_corrected_from_uncorrected_losses():
    classes, embeddings, labels = problem(num_classes=200, batch=16, biases=False)
    methods = pairs(
        {"uniform": cx.samplers.uniform},
        {"css": cx.losses.css, "subset_softmax": cx.losses.subset_softmax, "nce": cx.losses.nce},
    )
    # Logits near 0, so that 20 classes at random, corrected for, stand well for all 200.
    result = diagnose(classes, 0.1 * embeddings, labels, methods, num_sampled=[20], num_draws=400, key=KEY)
    bias, error = result.class_gradient_squared_bias
    assert bias[1, 0] > bias[0, 0] + 5 * np.hypot(error[0, 0], error[1, 0])
    assert bias[1, 0] > 5 * error[1, 0]
    # The noise of single draws is larger than the bias by far: it does not count as bias.
    assert result.class_gradient_bias.value[0, 0] < 0.2 * result.class_gradient_error.value[0, 0]
    # NCE says nothing of Z; its gradient has a direction all the same, and candidates are the same for all losses.
    assert np.isnan(result.log_z_bias.value[2]).all()
    assert np.isfinite(result.class_gradient_cosine.value[2]).all()
    np.testing.assert_array_equal(result.top_k_share.value[0], result.top_k_share.value[2])
    json.dumps(result.to_rows(), allow_nan=False)
    rows = {row["loss"]: row for row in result.to_rows()}
    assert rows["nce"]["z_bias"] is None
    assert rows["css"]["log_z_error"] == result.log_z_error.value[0, 0]


def test_candidates_held_and_effective_samples_in_closed_form():
    classes = cx.Classes(jnp.zeros((50, 2)), None, None, jnp.int32(50))
    embeddings, labels = jnp.ones((8, 2)), jnp.arange(40, 48)[:, None]

    def distinct(num_sampled):
        return cx.samplers.uniform(num_sampled, replacement=False)

    methods = [method(distinct, cx.losses.css)]
    result = diagnose(classes, embeddings, labels, methods, num_sampled=[10], num_draws=2000, key=KEY, top_k=10)
    # Of 50 equal classes 10 are drawn; the sampled label counts for nothing. Ties: the best are the classes 0 to 9.
    agree(result.effective_sample_size, 10 - 10 / 50, within=0.1)
    agree(result.top_k_share, 10 / 50, within=0.05)
    assert result.num_candidates.value.tolist() == [[10]]


def test_labels_do_not_count_among_the_best_classes():
    classes = cx.Classes(jnp.eye(4), None, None, jnp.int32(4))
    embeddings = jnp.array([[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.0, 1.0]])
    methods = [method(cx.samplers.top_k, cx.losses.css)]
    # The best two are 0 and 1. Example 0 has both as labels and is left out; of example 1, only 1 counts.
    labels = jnp.array([[0, 1], [0, -1]])
    result = diagnose(classes, embeddings, labels, methods, num_sampled=[2], num_draws=4, key=KEY, top_k=2)
    assert result.top_k_share.value.tolist() == [[1]]
    alone = diagnose(classes, embeddings[:1], labels[:1], methods, num_sampled=[1], num_draws=4, key=KEY, top_k=2)
    assert np.isnan(alone.top_k_share.value[0, 0])


def one_index(num_sampled):
    """A sampler that draws at construction and always returns the same classes."""
    drawn = cx.samplers.uniform(num_sampled)

    def init(key, classes):
        return drawn.init(key, classes), key

    def sample(state, key, query):
        del key
        return drawn.sample(*state, query)

    def log_expected_count(state, candidates, ids, query):
        return drawn.log_expected_count(state[0], candidates, ids, query)

    return drawn._replace(
        init=init,
        sample=sample,
        log_expected_count=log_expected_count,
        facts=dataclasses.replace(drawn.facts, law_over="index"),
    )


def test_a_law_over_the_index_gets_a_new_index_for_every_draw():
    data = problem()
    methods = [method(one_index, cx.losses.css)]
    result = diagnose(*data, methods, num_sampled=[10], num_draws=200, key=KEY)
    assert result.z_variance.value[0, 0] > 5 * result.z_variance.standard_error[0, 0]
    agree(result.z_bias, 0)
    fixed = diagnose(*data, methods, num_sampled=[10], num_draws=20, key=KEY, new_index=False)
    assert fixed.z_variance.value[0, 0] == 0
    assert abs(fixed.z_bias.value[0, 0]) > 0.01


def test_in_batch_candidates_are_those_of_the_batch():
    classes, embeddings, labels = problem()
    classes = dataclasses.replace(classes, counts=jnp.ones(40))
    methods = [
        method(lambda _: cx.samplers.in_batch(), cx.losses.css),
        method(cx.samplers.uniform, cx.losses.nce, "nce"),
    ]
    result = diagnose(classes, embeddings, labels, methods, num_sampled=[7], num_draws=4, key=KEY)
    assert result.num_candidates.value[:, 0].tolist() == [6, 7]
    assert result.log_z_bias.standard_error[0, 0] == 0
    assert result.only_this_batch == (True, False)


def test_the_sampler_of_a_normalised_head_sees_what_it_sees_in_training():
    classes, embeddings, labels = problem(biases=False)
    right, lengths = cx.samplers.uniform(5), []

    def sample(state, key, query):
        jax.debug.callback(lambda found: lengths.append(np.asarray(found)), jnp.linalg.norm(query.embeddings, axis=1))
        return right.sample(state, key, query)

    methods = [method(lambda number: right._replace(sample=sample), cx.losses.css)]
    normalized = dataclasses.replace(classes, normalized=True)
    diagnose(normalized, 3 * embeddings, labels, methods, num_sampled=[5], num_draws=4, key=KEY)
    jax.effects_barrier()
    np.testing.assert_allclose(np.concatenate(lengths), 1, rtol=1e-5)


def untimed(row):
    return {name: value for name, value in row.items() if "ms" not in name.split("_")}


def test_equal_keys_give_equal_results_and_progress_counts_draws():
    data = problem(biases=False)
    methods = [method(cx.samplers.uniform, cx.losses.css)]
    seen = []
    settings = {"num_sampled": [5], "num_draws": 10}
    first = diagnose(*data, methods, **settings, key=KEY, progress=lambda *done: seen.append(done))
    again = diagnose(*data, methods, **settings, key=KEY)
    other = diagnose(*data, methods, **settings, key=jax.random.key(6))
    assert [untimed(row) for row in first.to_rows()] == [untimed(row) for row in again.to_rows()]
    assert first.log_z_bias.value != other.log_z_bias.value
    assert seen == [(5, 10), (10, 10)]


def test_tables_of_16_bits_are_measured_in_32():
    classes, embeddings, labels = problem(biases=False)
    narrow = dataclasses.replace(classes, vectors=classes.vectors.astype(jnp.bfloat16))
    rounded = dataclasses.replace(classes, vectors=narrow.vectors.astype(jnp.float32))
    settings = {"methods": [method(cx.samplers.uniform, cx.losses.css)], "num_sampled": [5], "num_draws": 4, "key": KEY}
    rows = [diagnose(of, embeddings, labels, **settings).to_rows() for of in (narrow, rounded)]
    assert [untimed(row) for row in rows[0]] == [untimed(row) for row in rows[1]]


def test_embeddings_of_64_bits_give_no_warning(recwarn):
    assert _wide(np.zeros((2, 3))).dtype == jnp.zeros(()).dtype
    assert not recwarn.list


def test_a_loss_over_all_classes_has_no_estimate():
    with pytest.raises(ValueError, match="'sampler, full', whose loss scores all classes"):
        diagnose(
            *problem(), [method(cx.samplers.uniform, cx.losses.full_softmax, "full")], num_sampled=[5], num_draws=4,
            key=KEY,
        )  # fmt: skip


def test_the_bias_of_the_optimum_is_not_that_of_the_gradient():
    """sampled_softmax and nce have the full softmax's optimum, negative_sampling another; one step's mean is off."""
    names = ("sampled_softmax", "nce", "negative_sampling")
    methods = pairs({"log_uniform": cx.samplers.log_uniform}, {name: getattr(cx.losses, name) for name in names})
    classes, embeddings, labels = problem(num_classes=40, batch=8, num_labels=1)
    result = diagnose(classes, embeddings, labels, methods, num_sampled=[5], num_draws=1000, key=KEY)
    optimum, gradient = result.optimum_bias, result.class_gradient_bias
    for m in (0, 1):
        assert optimum.value[m, 0] < max(0.08, 4 * optimum.standard_error[m, 0])
        assert gradient.value[m, 0] > 0.1
    assert optimum.value[2, 0] > 0.15
    assert (result.step_ms.value > 0).all()
    assert result.full_ms > 0


def test_noise_is_what_is_left_of_the_error_without_the_bias():
    classes, embeddings, labels = problem(num_classes=20)
    methods = [method(cx.samplers.uniform, cx.losses.sampled_softmax)]
    result = diagnose(classes, embeddings, labels, methods, num_sampled=[5], num_draws=400, key=KEY)
    squares = result.class_gradient_squared_bias.value + result.class_gradient_noise.value**2
    np.testing.assert_allclose(squares, result.class_gradient_error.value**2, rtol=1e-6)
