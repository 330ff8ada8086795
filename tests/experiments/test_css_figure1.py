"""Figure 1 of Complementary Sum Sampling comes out as its module says."""

import json

import pytest

from candax.experiments.css_figure1 import EXPECTED, SAMPLES, Figure1, figure1


def test_errors_are_the_expected_ones(tmp_path):
    figure1(Figure1(quick=True, out=tmp_path))
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    error = {(row["method"], row["num_sampled"]): row["root_mean_square_error"] for row in rows}
    for method, expected in EXPECTED.items():
        assert [error[method, s] for s in SAMPLES] == pytest.approx(expected, rel=0.2)
    assert all(error["standard IS", s] > 50 * error["CSS-IS", s] for s in SAMPLES)
    assert (tmp_path / "css_figure1.png").stat().st_size > 10_000


@pytest.mark.parametrize(("settings", "holds"), [(Figure1(num_problems=200), True), (Figure1(num_classes=50), False)])
def test_what_was_found_is_drawn_only_where_it_was_found(settings, holds):
    study = figure1.__wrapped__(settings)
    assert ["here: " in panel.axes["title"] for panel in study.panels] == [False, False, holds]


def test_the_diagonal_is_one_on_a_log_scale_too():
    for panel in figure1.__wrapped__(Figure1()).panels:
        (line,) = panel.of([])
        assert list(line.x) == list(line.y)
        assert max(b - a for a, b in zip(line.x, line.x[1:], strict=False)) < 0.02


@pytest.mark.parametrize("number", [10, 399])
def test_problems_that_fill_no_batch_are_refused(number, tmp_path):
    with pytest.raises(ValueError, match="num-problems of 200 or a multiple of it"):
        figure1(Figure1(num_problems=number, out=tmp_path))
