"""The training loop: position, metrics, checkpoints; a killed run ends where an unbroken one does."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import chex
import jax
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.files import naming
from candax.training.metrics_log import MetricsLog
from candax.training.trainer import Trainer
from tests.training import problems

SAMPLER = cx.samplers.log_uniform(12, replacement=False)

# A run in a process of its own, slow enough to be killed in the middle.
SCRIPT = """
import sys, time
from tests.training.test_loop import fit_here
def evaluate(model, batches):
    time.sleep(0.05)
    return {}
fit_here(sys.argv[1], 60, evaluate)
"""


def same(one, other):
    """Bit for bit."""
    states = [nnx.to_pure_dict(nnx.state((training.model, training.optimizer))) for training in (one, other)]
    chex.assert_trees_all_equal(*states)


def fit_here(folder, num_steps, metric=lambda model, batches: {}, sampler=SAMPLER, **options):
    training = problems.Training(problems.model(sampler, cx.losses.css))
    validation = cx.training.Validation([()], metric, every=1)
    return fit(
        training,
        folder=folder,
        num_steps=num_steps,
        validation=validation,
        checkpoint_every=7,
        keep=2,
        log_every=5,
        **options,
    )


def fit(training, batches=None, **options):
    """``fit``, and the training that it was given, for its tables and its sampler's state."""
    batches = problems.Source() if batches is None else batches
    cx.training.fit(training.model, training.optimizer, batches, progress=False, **options)
    return training


def without_times(folder):
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    timed = ("seconds", "examples_per_s")
    return [{name: value for name, value in json.loads(line).items() if name not in timed} for line in lines]


def test_stopping_and_going_on_changes_nothing(tmp_path):
    whole = fit_here(tmp_path / "whole", 20)
    fit_here(tmp_path / "parts", 9)
    fit_here(tmp_path / "parts", 16)
    parts = fit_here(tmp_path / "parts", 20)
    same(whole, parts)
    losses = {r["step"]: r["loss"] for r in without_times(tmp_path / "parts") if "loss" in r}
    expected = {r["step"]: r["loss"] for r in without_times(tmp_path / "whole") if "loss" in r}
    assert losses.keys() > expected.keys()  # a stop is a checkpoint, and a checkpoint a record, of its own
    assert losses[20] == pytest.approx(np.mean([expected[20]]), rel=0.5)


def test_hash_tables_are_carried_through_checkpoints(tmp_path):
    whole = fit_here(tmp_path / "whole", 20, sampler=problems.HASHED)
    start = problems.model(problems.HASHED, cx.losses.css).head.state.get_value()
    assert np.any(whole.sampler.tables.codes != start.tables.codes)  # rows moved, tables were rebuilt
    fit_here(tmp_path / "parts", 9, sampler=problems.HASHED)
    parts = fit_here(tmp_path / "parts", 20, sampler=problems.HASHED)
    same(whole, parts)


def test_a_killed_run_ends_bit_for_bit_where_an_unbroken_run_ends(tmp_path):
    whole = fit_here(tmp_path / "whole", 60)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "killed")]
    for least_step in (3, 40):
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        metrics = tmp_path / "killed" / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if metrics.exists() and metrics.read_text().count("\n") and _last_step(metrics) >= least_step:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.02)
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors.decode()
    resumed = fit_here(tmp_path / "killed", 60)
    same(whole, resumed)
    assert without_times(tmp_path / "killed") == without_times(tmp_path / "whole")


def _last_step(path):
    complete = path.read_text().split("\n")[:-1]
    return json.loads(complete[-1])["step"] if complete else 0


def test_checkpoints_are_kept_to_a_number_and_hold_the_position(tmp_path):
    fit_here(tmp_path, 30)
    kept = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit())
    assert kept == [28, 30]
    about = json.loads(next((tmp_path / "checkpoints" / "28" / "about").iterdir()).read_text())
    assert about["position"] == {"epoch": 2, "index": 8, "state": None}


def test_another_run_in_the_same_folder_is_refused(tmp_path):
    fit_here(tmp_path, 3)
    with pytest.raises(ValueError, match=r"other settings: dataset was None and is 'other'"):
        fit_here(tmp_path, 6, identity={"dataset": "other"})


def test_the_schedule_decides_when_the_sampler_is_refreshed():
    steps = []
    refreshed = []
    sampler = SAMPLER._replace(
        schedule=lambda step: steps.append(step) or step == 2,
        refresh=lambda state, key, classes: refreshed.append(1) or SAMPLER.refresh(state, key, classes),
    )
    fit(problems.Training(problems.model(sampler, cx.losses.css)), num_steps=4)
    assert sorted(set(steps)) == [0, 1, 2, 3]
    assert refreshed == [1]  # traced once


def test_a_loss_that_is_not_finite_stops_the_run():
    training = problems.Training(problems.model(SAMPLER, cx.losses.css), optax.sgd(1e38))
    with pytest.raises(FloatingPointError, match="Lower the learning rate"):
        fit(training, num_steps=50, log_every=2)


class Broken(problems.Source):
    """A source with one wrong batch."""

    def __getitem__(self, position):
        batch = super().__getitem__(position)
        return self.damage(batch) if position[1] == 1 else batch


def broken(damage):
    source = Broken()
    Broken.damage = staticmethod(damage)
    return source


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b._replace(labels=b.labels + problems.NUM_CLASSES), r"labels of batch 1 of epoch 0 in 0 \.\.\. 59"),
        (lambda b: b._replace(labels=b.labels - 5), r"expected labels of .* in 0 \.\.\. 59 .*got -6"),
        (lambda b: b._replace(feature_ids=b.feature_ids + 40), r"ids of encoder.bag in 0 \.\.\. 39"),
    ],
)
def test_bad_batches_are_refused(damage, message):
    with pytest.raises(ValueError, match=message):
        fit(problems.Training(problems.model(SAMPLER, cx.losses.css)), broken(damage), num_steps=3)


def test_half_written_metrics_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "seconds": 0.1}\n{"step": 2, "seconds": 0.2}\n{"step": 3, "sec')
    assert [r["step"] for r in MetricsLog(path, resumed_step=1).records] == [1]
    assert path.read_text() == '{"step": 1, "seconds": 0.1}\n'


def test_what_tensorstore_tells_of_a_file_becomes_an_error_with_its_name():
    def read(told):
        try:
            raise ValueError(f"Error opening local file 'd/1f': {told}")
        except ValueError as error:
            raise RuntimeError("Encountered error while reading array index") from error

    with pytest.raises(PermissionError, match=r"Permission denied\. Permit it, .* 'letters'"), naming(Path("letters")):
        read("[os_error_code='13']")
    with pytest.raises(RuntimeError, match="Encountered"), naming(Path("letters")):
        read("no code")


def test_compiling_for_a_new_shape_is_no_part_of_the_seconds(monkeypatch):
    """By a clock that runs 1 second per step, and 100 more for each compilation."""
    now = [0.0]
    monkeypatch.setattr("candax.training.metrics_log.time.perf_counter", lambda: now[0])
    step = Trainer.step

    def timed(self, batch):
        compiled = self._step._cache_size()
        out = step(self, batch)
        now[0] += 1 + 100 * (self._step._cache_size() - compiled)
        return out

    monkeypatch.setattr(Trainer, "step", timed)
    whole = problems.Source()[0, 0]
    half = jax.tree.map(lambda leaf: leaf[: len(leaf) // 2], whole)
    training = problems.Training(problems.model(SAMPLER, cx.losses.css))
    fitted = cx.training.fit(
        training.model, training.optimizer, [whole, whole, half, half, whole], log_every=5, progress=False
    )
    assert fitted.records[-1]["seconds"] == 3  # without the first step of each shape
    assert fitted.records[-1]["examples_per_s"] == pytest.approx((2 * len(whole.labels) + len(half.labels)) / 3)
