"""The table fits a terminal without cutting numbers off; the picture is drawn for any methods."""

import dataclasses
import io

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from candax.diagnostics import Diagnostics, Measure, draw, table
from candax.diagnostics.report import with_error
from candax.diagnostics.result import MEASURES


def result(sampler_names=("uniform", "log_uniform"), loss_names=("css", "importance_sampling"), **changed):
    """Numbers of awkward lengths for two methods and three numbers of samples."""
    rng = np.random.default_rng(0)
    shape = len(sampler_names), 3
    measures = {
        name: Measure(
            -(10.0 ** rng.uniform(-5, 5, shape)) * rng.choice([-1, 1], shape), 10.0 ** rng.uniform(-7, 0, shape)
        )
        for name in MEASURES
    }
    measures["num_candidates"] = Measure(np.tile([8.0, 64.0, 512.0], (shape[0], 1)), np.zeros(shape))
    return Diagnostics(
        sampler_names=sampler_names,
        loss_names=loss_names,
        num_sampled=(8, 64, 1024),
        num_classes=1000,
        num_examples=4,
        num_draws=8,
        top_k=3,
        only_this_batch=(False,) * shape[0],
        full_ms=2.0,
        **{**measures, **changed},
    )


def printed(of):
    text = io.StringIO()
    Console(file=text, width=80).print(table(of))
    return text.getvalue()


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.5, 0.01, "0.50(1)"),
        (0.5, 0.0096, "0.50(1)"),
        (0.5, 0.0111, "0.50(2)"),
        (-0.0123, 0.0004, "-0.0123(4)"),
        (0.0, 0.2, "0.0(2)"),
        (3.0, 5.0, "3(5)"),
        (1589.0, 312.0, "1.6(4)e3"),
        (4.68e-5, 2e-6, "4.7(2)e-5"),
        (0.9999999, 2e-7, "1"),
        (0.998765, 2e-6, "0.9988(1)"),
        (-17.05581, 3e-4, "-17.06(1)"),
        (-1234567.0, 10.0, "-1.2(1)e6"),
        (0.25, 0.0, "0.25"),
        (float("nan"), float("nan"), "-"),
        (float("inf"), float("nan"), "-"),
    ],
)
def test_numbers_with_their_errors(value, error, text):
    assert with_error(value, error) == text


def test_table_is_whole_in_80_columns():
    text = printed(result())
    assert "…" not in text
    assert "importance_sampling" in text
    assert text.count("1024") == 2 * 4
    assert "1,000 classes, 4 examples, 8 draws" in text
    assert "*" not in text


def test_methods_without_likelihood_have_gradients_only():
    nothing = Measure(np.full((2, 3), np.nan), np.full((2, 3), np.nan))
    names = [name for name in MEASURES if name.startswith(("z_", "log_z_", "p_true_"))]
    text = printed(result(loss_names=("nce", "ranking"), **dict.fromkeys(names, nothing)))
    assert "Z and log Z" not in text
    assert "gradients" in text
    assert "nce" in text


def test_samplers_fixed_by_the_batch_are_marked():
    text = printed(dataclasses.replace(result(sampler_names=("uniform", "in_batch")), only_this_batch=(False, True)))
    assert "in_batch*" in text
    assert "uniform*" not in text
    assert "*: random through the choice of the batch" in text


def test_picture_shows_every_panel(tmp_path):
    nothing = Measure(np.full((2, 3), np.nan), np.full((2, 3), np.nan))
    draw(result(), tmp_path / "all.png")
    draw(result(log_z_bias=nothing, log_z_error=nothing), tmp_path / "some.png")
    images = [matplotlib.image.imread(tmp_path / name) for name in ("all.png", "some.png")]
    assert images[0].shape[0] > 3 * 200
    assert images[0].shape[1] > 2 * 300
    assert images[0].shape[0] > 400
    # Without log Z the first panels stay empty.
    third = images[0].shape[1] // 3
    assert (images[0][:, :third] < 0.5).sum() > (images[1][:, : images[1].shape[1] // 3] < 0.5).sum()
