"""Advice: its figures are those of the draws, and what it recommends follows from times and counts."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax import cli
from candax.diagnostics import advising
from candax.diagnostics.step_times import StepTimes

COUNTS = np.round(1e5 / np.arange(1, 3001))


def told(
    monkeypatch: pytest.MonkeyPatch, full: float, counts: np.ndarray = COUNTS, **options: object
) -> cx.diagnostics.Advice:
    """Advice where sampled steps take 1 ms and 1 more per 1024 candidates."""
    times = StepTimes(full, {256: 1.25, 4096: 5.0}, {4096: 9.0}, ())
    monkeypatch.setattr(advising, "time_steps", lambda *_, **__: times)
    return cx.diagnostics.advise(counts, **{"dim": 16, "batch_size": 32, **options})


def test_times_on_a_line_through_what_was_measured() -> None:
    times = StepTimes(9.0, {256: 1.25, 4096: 5.0}, {}, ())
    assert times.of(2048) == pytest.approx(3.0)
    assert times.of(8192) == pytest.approx(9.0)
    assert times.of(64) == 1.25
    assert StepTimes(9.0, {100: 2.0}, {}, ()).of(10) == 2.0


def test_a_slow_full_softmax_is_left_for_samples_and_a_quick_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = told(monkeypatch, 1e4)
    assert slow.sampler in ("unigram", "log_uniform")
    assert slow.loss == "css"
    assert f"and {slow.num_sampled // 2:,} candidates." in slow.unsure[0]
    assert told(monkeypatch, 1e4, labels_per_example=2.4).loss == "one_vs_all"
    quick = told(monkeypatch, 0.1)
    assert (quick.sampler, quick.loss, quick.optimizer) == ("full_softmax", "full_softmax", "dense")
    assert not quick.unsure
    near = told(monkeypatch, slow.options[0].cost * 1.1)
    assert any("try both" in line for line in near.unsure)
    flat = told(monkeypatch, 1e6, np.ones(3000))
    assert any("nearly flat" in line for line in flat.unsure)
    sparse = told(monkeypatch, 1e6, np.where(np.arange(3000) % 3, 0, COUNTS))
    assert any(line.startswith("2,000 of 3,000 classes never occur") for line in sparse.unsure)


def test_the_best_of_each_sampler_comes_first_and_the_cheapest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a sampler has options that cost more than all classes."""
    advice = told(monkeypatch, 1e4)
    costs = {option.cost for option in advice.options if option.sampler == advice.sampler}
    between = (min(costs) * max(costs)) ** 0.5
    assert min(costs) < between < max(costs)
    advice = told(monkeypatch, between)
    firsts = advice.options[:4]
    assert [option.cost for option in firsts] == sorted(option.cost for option in firsts)
    assert advice.sampler != "full_softmax"
    assert told(monkeypatch, 1e4, rest_ms=1e3).num_sampled > told(monkeypatch, 1e4, rest_ms=0.0).num_sampled
    for first in firsts:
        assert first.cost == min(option.cost for option in advice.options if option.sampler == first.sampler)


def test_figures_are_those_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    advice = told(monkeypatch, 1e4)
    p = COUNTS / COUNTS.sum()
    rng = np.random.default_rng(0)
    labels = rng.choice(len(p), 40_000, p=p)
    classes = cx.Classes(jnp.zeros((len(p), 2)), None, jnp.asarray(COUNTS, jnp.float32))
    query = cx.Query(jnp.zeros((1, 2)), jnp.zeros((1, 1), jnp.int32), classes)
    for option in advice.options:
        if option.sampler not in ("uniform", "log_uniform", "unigram") or option.num_sampled != 256:
            continue
        extra = {"smoothing": 1.0} if option.sampler == "unigram" else {}
        sampler = getattr(cx.samplers, option.sampler)(256, **extra)
        state = sampler.init(jax.random.key(0), classes)
        sample = jax.jit(sampler.sample)
        draws = [
            np.bincount(np.asarray(sample(state, jax.random.key(i), query).ids[0]), minlength=len(p)) for i in range(60)
        ]
        among = np.mean([np.mean(counts[labels] > 0) for counts in draws])
        hits = np.mean([np.mean(counts[labels]) for counts in draws])
        assert option.found == pytest.approx(among, rel=0.03, abs=0.01)
        assert option.hits == pytest.approx(hits, rel=0.1, abs=0.01)
        # Z of the half-trained model, whose masses are those of the docstring.
        found = sampler.sample(state, jax.random.key(0), query)
        q = (
            np.exp(np.asarray(sampler.log_expected_count(state, found, jnp.arange(len(p))[None], query)[0], np.float64))
            / 256
        )
        a = 0.2
        masses = (1 - a) * p + a * np.eye(1, len(p), labels[0])[0]
        assert np.sum(masses**2 / q) >= 1
        spread = np.sum(((1 - a) * p) ** 2 / q)
        second = np.mean([spread + 2 * a * (1 - a) * p[z] / q[z] + a**2 / q[z] for z in labels])
        assert option.variance == pytest.approx((second - 1) / 256, rel=0.1)


def test_devices_by_memory_and_a_snippet_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    advice = told(monkeypatch, 1e4, memory_bytes=1 << 30)
    assert advice.num_devices == 1
    assert advice.table_bytes == 3000 * 17 * 12
    namespace = {"counts": COUNTS}
    exec(advice.snippet, namespace)
    assert namespace["head"].num_classes == 3000
    assert told(monkeypatch, 1e4, memory_bytes=advice.table_bytes).num_devices == 2
    several = told(monkeypatch, 1e4, memory_bytes=advice.table_bytes // 2)
    assert several.num_devices == 4
    exec(several.snippet, namespace)
    assert namespace["head"].placement.num_shards == 4


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        (np.array([1.0]), {}, "at least two classes"),
        (np.array([1.0, -1.0]), {}, "expected finite counts"),
        (np.zeros(3), {}, "some above 0"),
        (COUNTS, {"labels_per_example": 0.5}, "labels_per_example of 1 or more"),
        (COUNTS, {"rest_ms": -1.0}, "rest_ms, milliseconds, of 0 or more"),
        (COUNTS, {"seconds": 0.0}, "number of seconds > 0"),
    ],
)
def test_errors(counts: np.ndarray, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cx.diagnostics.advise(counts, **{"dim": 4, "batch_size": 4, **options})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compiled and timed for real, at a small size."""
    file = tmp_path / "counts.txt"
    file.write_text("\n".join(str(int(100 / i)) for i in range(1, 41)))
    args = ["advise", str(file), "--dim", "4", "--batch-size", "8", "--seconds", "0.05", "--out", str(tmp_path / "out")]
    cli.main(args)
    printed = capsys.readouterr().out
    assert "40 classes" in printed
    assert "head = cx.Head(" in printed
    assert (tmp_path / "out" / "results.json").is_file()


def test_the_optimizer_follows_how_often_half_of_the_rows_are_used():
    counts = np.floor(1e5 / np.arange(1, 3001))
    best = advising.Option("unigram", 512, 1e-3, 0.5, 1.0, 0.1, 1e-3)
    smoothed = (counts + 1) ** 0.75
    p, q = counts / counts.sum(), smoothed / smoothed.sum()
    gap = np.median(1 / (1 - (1 - p) ** 64 * (1 - q) ** 512))
    form, why = advising._optimizer(best, counts, 64)
    assert form == "exact"
    assert f"once in {gap:.0f} steps or less often" in why
    assert advising._optimizer(best, counts[:500], 64)[0] == "lazy"
