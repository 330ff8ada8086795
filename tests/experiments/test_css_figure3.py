"""Figure 3 of Complementary Sum Sampling: every method trains and leaves what it measured."""

import numpy as np
import pytest

from candax.experiments.css_figure3 import Figure3, figure3


def test_methods_train_and_are_measured(tmp_path):
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(30)]
    # Which word comes next depends on the last: there is something to learn.
    lines = [" ".join(words[(start + 7 * i) % 30] for i in range(6)) for start in rng.integers(0, 30, 1300)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    settings = Figure3(
        quick=True,
        text=(tmp_path / "text.txt",),
        rates=(1e9, 0.2),  # the first one must be found to diverge
        epochs=8,
        full_epochs=8,
        keep_one_in=1,
        batch_size=128,
        alphas=(1.0,),
        likelihood_words=500,
        out=tmp_path / "out",
    )
    found = figure3(settings)
    rows = {row["method"]: row for row in found}
    assert set(rows) == {"full softmax", "CSS-IS"}
    for row in rows.values():
        assert (row["learning_rate"], row["diverged"]) == (0.2, [1e9])
        curve = row["curve"]["log_likelihood"]
        assert row["curve"]["epoch"] == list(range(9))
        assert curve[0] == pytest.approx(-np.log(31), abs=0.02)
        assert curve[-1] > curve[0] + 0.03
        assert row["log_likelihood"] == pytest.approx(curve[-1], abs=0.1)
    assert (tmp_path / "out" / "css_figure3.png").stat().st_size > 10_000


def test_rows_of_another_text_are_not_kept(tmp_path):
    path = tmp_path / "text.txt"

    def digest(text):
        path.write_text(text)
        return figure3.__wrapped__(Figure3(quick=True, text=(path,), keep_one_in=1).ready()).data

    first, second = "cats chase mice\n" * 20, "cats chase cats\n" * 20
    assert digest(first) == digest(first) != digest(second)


def test_bad_settings_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--epochs of 1 or more, got 0"):
        figure3(Figure3(epochs=0, out=tmp_path))
    (tmp_path / "text.txt").write_text("one two")
    with pytest.raises(ValueError, match="found none"):
        figure3(Figure3(text=(tmp_path / "text.txt",), out=tmp_path))


@pytest.mark.parametrize("nothing", ["alphas", "rates"])
def test_empty_lists_are_refused(nothing):
    with pytest.raises(ValueError, match="a number after --alphas and one after --rates, got"):
        figure3(Figure3(**{nothing: ()}))
