"""Figures 2a and 2b of Complementary Sum Sampling come out as their modules say, also when they are small."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax.experiments.css_figure2a import IS_AT_CSS_RATE, Figure2a, figure2a
from candax.experiments.css_figure2b import Figure2b, figure2b
from candax.experiments.softmax_regression import (
    EXACT,
    MOMENTUM,
    RECORD_EVERY,
    Curves,
    best_at_end,
    draw_problem,
    largest_converging,
    train,
)


@pytest.fixture(scope="module")
def rows_2a(tmp_path_factory):
    out = tmp_path_factory.mktemp("figure2a")
    rows = figure2a(Figure2a(quick=True, out=out))
    assert (out / "css_figure2a.png").stat().st_size > 10_000
    assert len(json.loads((out / "results.json").read_text())["rows"]) == len(rows) == 11
    return {row["method"]: row for row in rows}


def test_likelihood_methods_agree_and_lead(rows_2a):
    likelihood = ("exact", "CSS-IS", "CSS-Bernoulli", "CSS-IS, smoothed", "CSS-Bernoulli, smoothed")
    assert len({rows_2a[name]["learning_rate"] for name in likelihood}) == 1
    final = {name: row["final"] for name, row in rows_2a.items()}
    assert all(final[name] > -0.1 for name in likelihood)
    worst = min(final[name] for name in likelihood)
    assert final["exact"] == max(final[name] for name in likelihood)
    assert worst > max(final[name] for name in ("BlackOut", IS_AT_CSS_RATE))


def test_self_normalised_methods_fail(rows_2a):
    assert rows_2a["NCE"]["best_final_of_all_rates"] < -np.log(150) + 0.5
    assert rows_2a["negative sampling"]["best_final_of_all_rates"] < rows_2a["CSS-IS"]["final"] - 0.5


def test_classes_never_seen_are_never_drawn_unless_smoothed(rows_2a):
    for name in ("CSS-IS", "CSS-Bernoulli"):
        assert rows_2a[name]["length_of_unseen_vectors"] == 0
        assert rows_2a[f"{name}, smoothed"]["length_of_unseen_vectors"] > 0.1
    assert rows_2a["exact"]["length_of_unseen_vectors"] > 0.1


def test_margins_help_where_points_are_separable_and_harm_elsewhere(tmp_path):
    rows = figure2b(Figure2b(quick=True, out=tmp_path))
    final = {
        panel: [row["final"] for row in rows if row["panel"] == panel]
        for panel in ("C = 100", "control", "control, samples")
    }
    assert final["C = 100"] == sorted(final["C = 100"])
    assert final["C = 100"][-1] > -0.2
    assert final["control"] == sorted(final["control"], reverse=True)
    assert final["control"][-1] < -np.log(100) < final["control"][0]
    assert final["control, samples"] == sorted(final["control, samples"])
    entropy = [row["entropy"] for row in rows if row["panel"] == "control, samples"]
    assert entropy == sorted(entropy)
    assert len(entropy) == 3
    assert (tmp_path / "css_figure2b.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("settings", "holds"),
    [
        (Figure2a(out=Path("elsewhere")), True),
        (Figure2a(quick=True), False),
        (Figure2a(rates=(0.1,)), False),
        (Figure2b(), True),
        (Figure2b(quick=True), False),
        (Figure2b(seed=1), False),
    ],
)
def test_what_was_found_is_drawn_only_where_it_was_found(settings, holds):
    study = (figure2a if isinstance(settings, Figure2a) else figure2b).__wrapped__(settings.ready())
    assert {"\nhere: " in panel.axes["title"] for panel in study.panels} == {holds}


@pytest.mark.parametrize(
    ("settings", "known"), [(Figure2b(seed=3, margins=(1.0,)), True), (Figure2b(num_points=9), False)]
)
def test_titles_say_what_can_be_separated_only_of_the_default_sizes(settings, known):
    titles = [panel.axes["title"] for panel in figure2b.__wrapped__(settings.ready()).panels]
    assert [": separable" in title for title in titles] == [known, known, False, False]
    assert [": not separable" in title for title in titles] == [False, False, known, known]


def test_log_likelihoods_are_not_above_0_in_any_panel(tmp_path):
    small = {"num_classes": (5,), "margins": (0.0,), "css_samples": (2,), "dim": 3, "num_points": 20}
    figure2b(Figure2b(quick=True, **small, iterations=RECORD_EVERY, out=tmp_path))
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["panel"] for row in rows} == {"C = 5", "control", "control, samples"}
    for row in rows:
        curve = row["curve"]["log_likelihood"]
        assert max(curve) <= 0
        assert curve[-1] == row["final"]
        assert row["curve"].get("minus", [-value for value in curve]) == [-value for value in curve]


def test_training_is_gradient_descent_with_momentum():
    problem = draw_problem(jax.random.key(0), num_classes=5, num_points=1, dim=3)
    curves = train(problem, EXACT, (0.1, 0.2), key=jax.random.key(1), iterations=RECORD_EVERY, batch_size=2)
    for rate, vectors in zip(curves.rates, curves.vectors, strict=True):
        expected, momentum = np.zeros((5, 3)), np.zeros((5, 3))
        x, y = np.asarray(problem.inputs[0], np.float64), int(problem.labels[0, 0])
        for _ in range(RECORD_EVERY):
            p = np.exp(expected @ x)
            momentum = MOMENTUM * momentum + np.outer(p / p.sum() - np.eye(5)[y], x)
            expected -= rate * momentum
        np.testing.assert_allclose(vectors, expected, rtol=1e-3, atol=1e-4)


def _curves(*values):
    return Curves(np.arange(1.0, len(values) + 1), np.asarray(values, float), jnp.zeros((len(values), 2, 2)))


def test_rates_are_chosen_by_falls_and_by_ends():
    slow, quick, falls, diverges = (-7, -5, -4), (-7, -2, -1), (-7, -30, -0.5), (-7, -1, np.nan)
    assert largest_converging(_curves(slow, quick, falls, diverges)) == 1
    assert largest_converging(_curves(slow, quick), _curves(quick, falls)) == 0
    assert best_at_end(_curves(slow, quick, falls, diverges)) == 2
    assert best_at_end(_curves(slow, quick, falls), _curves(quick, slow, diverges)) == 0
    with pytest.raises(ValueError, match="try lower ones"):
        largest_converging(_curves(falls, diverges))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Figure2a(num_classes=2), "num-classes of 3 or more, got --num-classes 2"),
        (Figure2a(rates=()), r"one rate or more, got --rates \(\)"),
        (Figure2a(batch_size=0), "batch-size of 1 or more, got 0"),
        (Figure2a(iterations=70), "multiple of 50, got --iterations 70"),
        (Figure2b(num_classes=(500, 1)), "num-classes of 3 or more"),
        (Figure2b(num_classes=()), "num-classes of 3 or more"),
        (Figure2b(control_dim=0), "control-dim of 1 or more"),
        (Figure2b(iterations=0), "iterations of 1 or more, got 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        (figure2a if isinstance(settings, Figure2a) else figure2b)(settings)
