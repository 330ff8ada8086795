"""``fit`` interrupted, watched and misused: callbacks, signals, damaged checkpoints, exporting."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import candax as cx
from candax.training import loop
from candax.training.checkpoints import Checkpoints
from candax.training.means import Means
from candax.training.metrics_log import MetricsLog
from candax.training.saved import write_classes
from tests.training.fitting import ADAM, DIM, NUM, SAMPLER, SIZE, Model, count, fit, make, pairs, same, words_of


def test_what_is_done_while_training_leaves_the_trainer_unharmed(tmp_path):
    """Evaluating, diagnosing, saving and exporting, with whatever they do to the model that they are given."""

    def harm(model, batches):
        model.words.embedding[...] *= 0
        model.head.draws[...] += 7
        model.train()
        return float(jnp.sum(model(pairs(1)[0][0])))

    model, optimizer = make()
    diagnosed = []

    def look(step, metrics):
        classes = model.head.classes()
        methods = [cx.diagnostics.Method("uniform", "css", cx.samplers.uniform, cx.losses.css)]
        query = jnp.ones((2, DIM)), jnp.array([[1], [2]])
        if step in (4, 8):  # it compiles anew each time
            cx.diagnostics.diagnose(classes, *query, methods, num_sampled=[4], num_draws=8, key=jax.random.key(0))
            diagnosed.append(step)
        if step > 4:
            cx.training.export(tmp_path / "run", tmp_path / "out")
        model.head.top_k(jnp.ones((1, DIM)), 3)

    validation = cx.training.Validation(pairs(1), harm, every=3)
    found = fit(
        pairs(), model, optimizer, validation=validation, callback=look, folder=tmp_path / "run", checkpoint_every=4
    )
    assert diagnosed == [4, 8]
    assert (tmp_path / "out").is_dir()
    same(found, fit(pairs(), checkpoint_every=4))


def test_callbacks_get_numbers_and_may_stop(tmp_path):
    seen = {}

    def loss_fn(model, batch):
        return model.head.loss(model(batch[0]), batch[1]), {"size": jnp.float32(batch[0].shape[0])}

    found = fit(pairs(), loss_fn=loss_fn, callback=lambda step, m: seen.update({step: m}) or step == 8, folder=tmp_path)
    assert (found.step, found.stopped) == (8, "callback")
    assert list(seen) == [4, 8]
    assert seen[8]["size"] == SIZE
    assert all(isinstance(value, float) for value in seen[8].values())
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [4, 8]
    assert cx.training.load(tmp_path, Model).step == 8
    assert fit(pairs(), callback=lambda step, metrics: jnp.array(step == 4)).step == 4
    for returned in ("stop", 1, np.ones(2)):
        with pytest.raises(ValueError, match=r"expected the callback to return True to stop, or None, got ['1a]"):
            fit(pairs(), num_steps=4, callback=lambda step, metrics, returned=returned: returned)


def test_a_callback_may_give_a_head_its_sampler():
    head, refreshed = cx.Head(NUM, DIM, rngs=nnx.Rngs(0)), []
    follows = cx.samplers.every(SAMPLER, lambda step: refreshed.append(step) or step == 5)

    def callback(step, metrics):
        if step == 4:
            head.use(follows, cx.losses.sampled_softmax)

    def loss_fn(head, batch):
        return head.loss(jnp.ones((SIZE, DIM)), batch)

    optimizer = cx.Optimizer(head, optax.sgd(0.1))
    fit([np.arange(SIZE)] * 8, head, optimizer, loss_fn=loss_fn, callback=callback, num_steps=8)
    assert set(refreshed) >= {4, 5, 6, 7}


def test_a_callback_that_raises_loses_nothing(tmp_path):
    def fail(step, metrics):
        if step == 8:
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        fit(pairs(), callback=fail, folder=tmp_path)
    assert cx.training.load(tmp_path, Model).step == 8
    same(fit(pairs(), folder=tmp_path), fit(pairs()))


# What a shell starts in the background ignores SIGINT, and so does ``fit`` there.
SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.training.fitting import fit, pairs
fit(pairs(), num_steps=10000, log_every=5, folder=sys.argv[1], callback=lambda step, m: print(step, flush=True))
"""


class TwoHeads(nnx.Module):
    """Two heads over words, the second with a sampler of its own."""

    def __init__(self, first, second):
        rngs = nnx.Rngs(0)
        self.words = cx.Embed(NUM, DIM, rngs=rngs)
        self.heads = nnx.List([cx.Head(NUM, DIM, sampler=sampler, rngs=rngs) for sampler in (first, second)])

    def loss(self, batch):
        words, labels = batch
        return sum(head.loss(self.words(words), labels) for head in self.heads)


def test_a_sampler_that_fails_to_refresh_loses_nothing(tmp_path):
    """Also where another head's sampler was refreshed before."""
    uniform, refuses = cx.samplers.every(cx.samplers.learned_unigram(12), 5), True

    def refresh(state, key, classes):
        if refuses:
            raise RuntimeError("no more")
        return uniform.refresh(state, key, classes)

    def train(**options):
        model = TwoHeads(uniform, uniform._replace(refresh=refresh))
        return fit(pairs(), model, cx.Optimizer(model, ADAM), loss_fn=TwoHeads.loss, **options)

    with pytest.raises(RuntimeError, match="no more"):
        train(folder=tmp_path)
    assert Checkpoints(tmp_path, identity=None, reads=True).latest_step == 5
    refuses = False
    same(train(folder=tmp_path), train())


def test_a_folder_that_is_removed_during_training_is_an_error_in_words(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with pytest.raises(FileNotFoundError, match="The folder was removed while a run wrote there"):
        fit(pairs(), folder=folder, log_every=1, callback=lambda step, _: shutil.rmtree(folder))

    def save(manager, *args, **options):
        raise ValueError('NOT_FOUND: Error writing "model" in OCDBT database')  # as TensorStore says it

    monkeypatch.setattr(ocp.CheckpointManager, "save", save)
    with pytest.raises(FileNotFoundError, match="The folder was removed while a run wrote there"):
        fit(pairs(), folder=tmp_path)


def test_of_two_that_train_in_one_folder_the_second_is_refused(tmp_path):
    refused = []

    def again(step, metrics):
        if step == 8:
            with pytest.raises(ValueError, match="expected no other run to write to") as error:
                fit(pairs(), folder=tmp_path)
            refused.append(str(error.value))
            for _ in range(600):  # it is written beside the training
                if any(of.name.isdigit() for of in (tmp_path / "checkpoints").iterdir()):
                    break
                time.sleep(0.1)
            assert cx.training.load(tmp_path, Model).step > 0

    same(fit(pairs(), folder=tmp_path, checkpoint_every=4, callback=again), fit(pairs()))
    assert str(tmp_path) in refused[0]
    fit(pairs(), folder=tmp_path)


def test_a_run_whose_last_write_failed_lets_the_next_one_in(tmp_path, monkeypatch):
    close = ocp.CheckpointManager.close

    def full(manager):
        close(manager)
        raise OSError("the disk is full")

    monkeypatch.setattr(ocp.CheckpointManager, "close", full)
    with pytest.raises(OSError, match="the disk is full") as error:
        fit(pairs(), num_steps=4, folder=tmp_path)
    monkeypatch.undo()
    assert fit(pairs(), num_steps=8, folder=tmp_path).step == 8
    assert error.tb is not None  # as a notebook does, it keeps the run that failed


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"expected a folder to write to, got the file .*file"):
        fit(pairs(), folder=tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"expected a folder to write to, got a link that leads nowhere .*link"):
        fit(pairs(), folder=tmp_path / "link")


def test_asked_twice_it_leaves_at_once(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    script = SCRIPT.replace("print(step, flush=True)", "(print(step, flush=True), time.sleep(3600))")
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert not ended(process, 1.0)
    process.send_signal(signal.SIGINT)
    assert ended(process, 60.0)
    assert process.returncode


def ended(process, seconds):
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.mark.parametrize("asked", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_step_and_saves(asked, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if int(line) >= 10:
            process.send_signal(signal.Signals[asked])
            break
    _, errors = process.communicate(timeout=120)
    assert f"stopped by {asked} after step" in errors
    assert "The same call or command again goes on" in errors
    step = cx.training.load(tmp_path, Model).step
    assert step >= 10
    same(fit(pairs(), num_steps=step + 5, folder=tmp_path), fit(pairs(), num_steps=step + 5))


@pytest.mark.parametrize(
    ("batches", "said"),
    [(lambda: iter(pairs()), "The same call with skip=True goes on"), (pairs(), "The same call or command again")],
    ids=["a function", "a list"],
)
def test_who_stops_a_run_is_told_whether_its_batches_have_a_position(batches, said, tmp_path):
    def stop(step, metrics):
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(loop.Interrupted, match=f"after step 4 and saved in .*{said}"):
        fit(batches, callback=stop, folder=tmp_path)


def test_the_records_are_those_of_an_unbroken_run(tmp_path):
    """Stopped between two records, at a step that is no multiple of log_every."""
    ask = []

    def measure(model, batches):
        if ask:
            signal.raise_signal(ask.pop())
        return {"zero": 0.0}

    def loss_fn(model, batch):
        return model.head.loss(model(batch[0]), batch[1]), {"weight": 1.0 + batch[1][0]}

    options = {"loss_fn": loss_fn, "validation": cx.training.Validation(pairs(1), measure, every=6)}
    unbroken = fit(pairs(), **options)
    ask.append(signal.SIGTERM)
    with pytest.raises(loop.Interrupted, match="after step 6"):
        fit(pairs(), folder=tmp_path, **options)
    found = fit(pairs(), folder=tmp_path, **options)
    same(found, unbroken)
    steady = [[(r["step"], r.get("loss")) for r in run.records] for run in (found, unbroken)]
    assert steady[0] == steady[1]
    seconds = [record["seconds"] for record in found.records]
    assert seconds == sorted(seconds)
    first, _, second, *_ = found.records  # a measurement between them
    # The first step after the stop is not on the clock.
    assert second["examples_per_s"] == pytest.approx(3 * SIZE / (second["seconds"] - first["seconds"]))


def test_a_run_may_go_on_with_other_numbers_beside_the_loss():
    means = Means({"found": [[9.0, {"old": 1.0}]], "examples": 8})
    means.add((jnp.float32(2.0), {"new": jnp.float32(3.0)}), 8)
    assert means.of_all() == {"loss": 2.0, "new": 3.0}
    assert Means({}).of_all() is None


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with loop._Signals() as signals:
            signal.raise_signal(signal.SIGINT)
        assert signals.asked is None
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_it_trains_in_other_threads_too():
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(pairs(), num_steps=2)))
    thread.start()
    thread.join()
    assert found[0].step == 2


def test_runs_in_several_threads_save_at_once(tmp_path):
    together, failed = threading.Barrier(3, timeout=60), []

    def saves(name):
        with Checkpoints(tmp_path / name, identity=None) as checkpoints:
            for step in range(1, 7):
                try:
                    together.wait()
                    checkpoints.save(step, nnx.Dict(a=nnx.Param(jnp.full(3, step))), None, {})
                    checkpoints.wait()
                except Exception as error:
                    failed.append(error)

    threads = [threading.Thread(target=saves, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_checkpoints_of_other_models_and_damaged_ones_are_refused(tmp_path):
    fit(pairs(), num_steps=2, folder=tmp_path)
    model, optimizer = make(num=60)
    with pytest.raises(ValueError, match=r"another model .*: model/.* was float32\[50\] and is float32\[60\]"):
        fit(pairs(), model, optimizer, folder=tmp_path)
    model, optimizer = make(optax.sgd(0.1))
    with pytest.raises(ValueError, match="of another model or optimizer"):
        fit(pairs(), model, optimizer, folder=tmp_path)
    with pytest.raises(ValueError, match="other settings: rate was None and is 2"):
        fit(pairs(), folder=tmp_path, identity={"rate": 2})
    with pytest.raises(ValueError, match=r"expected identity\['tx'\] to be made of numbers, .* got object"):
        fit(pairs(), folder=tmp_path, identity={"tx": object()})
    with pytest.raises(ValueError, match="other settings: rate was None and is nan"):
        fit(pairs(), folder=tmp_path, identity={"rate": np.float32("nan")})
    about = next((tmp_path / "checkpoints" / "2" / "about").iterdir())
    text = about.read_text()
    about.write_text(text.replace('"version": 1', '"version": 2').replace('"version":1', '"version":2'))
    with pytest.raises(ValueError, match="got one of version 2, written by a newer candax"):
        fit(pairs(), folder=tmp_path)
    about.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"cannot be read .* Delete this folder"):
        fit(pairs(), folder=tmp_path)
    with pytest.raises(ValueError, match="expected a folder that fit has written"):
        cx.training.load(tmp_path / "nothing", Model)


def test_a_checkpoint_of_another_number_of_classes_is_refused_where_padded_rows_are_as_many(tmp_path):
    def make(num):
        head = cx.Head(num, DIM, sampler=SAMPLER, num_shards=4, rngs=nnx.Rngs(0))
        return head, cx.Optimizer(head, ADAM)

    with Checkpoints(tmp_path, identity=None) as checkpoints:
        checkpoints.save(1, *make(41), {})
        with pytest.raises(ValueError, match="another model or optimizer: num_classes of head was 41 and is 43"):
            checkpoints.restore(*make(43))


@pytest.mark.parametrize("held", [jnp.zeros(3, jnp.uint4), jnp.zeros((0, 3))], ids=["a type", "nothing"])
def test_what_no_checkpoint_can_hold_is_refused_before_training(held, tmp_path):
    model, optimizer = make()
    model.held = nnx.Variable(held)
    with pytest.raises(
        ValueError, match=r"that a checkpoint can hold, .* got model/held of (uint4\[3\]|float32\[0, 3\])"
    ):
        fit(pairs(), model, optimizer, folder=tmp_path, on_start=lambda: pytest.fail("it trains"))


def test_a_setting_of_nan_is_equal_to_itself(tmp_path):
    settings = {"rate": np.float32("nan"), "sizes": (1, 2.0)}
    with Checkpoints(tmp_path, identity=settings) as checkpoints:
        checkpoints._check_identity({"rate": float("nan"), "sizes": [1.0, 2]})


def test_export_writes_what_others_read(tmp_path):
    found = fit(pairs(), num_steps=2, folder=tmp_path / "run")
    files = {path.name: path for path in cx.training.export(tmp_path / "run", tmp_path / "out")}
    from safetensors.numpy import load_file

    parts = load_file(files["head.safetensors"])
    np.testing.assert_array_equal(parts["class_vectors"], found.model.words.embedding[...])
    np.testing.assert_array_equal(parts["class_biases"], found.model.head.biases[...])
    np.testing.assert_array_equal(parts["class_ids"], np.arange(NUM))
    for name in parts:
        np.testing.assert_array_equal(np.load(files[f"head.{name}.npy"]), parts[name])
    # Of another head, which has no biases: those of this one do not stay beside its vectors.
    write_classes(tmp_path / "out", "head", {"class_vectors": np.ones((2, 3), np.float32)}, normalized=True)
    assert not files["head.class_biases.npy"].exists()
    assert files["head.class_ids.npy"].exists()


def with_something_beside():
    class Both(Model):
        def __call__(self, words):
            return super().__call__(words), 1

    model = Both()
    return model, cx.Optimizer(model, optax.sgd(0.1))


def test_bad_batches_say_which_and_why(tmp_path):
    def spoil(place, **fields):
        batches = [{"words": a, "labels": b} for a, b in pairs()]
        batches[place] = {**batches[place], **fields}
        return batches

    with pytest.raises(ValueError, match=r"expected labels of batch 3 of epoch 0 in 0 \.\.\. 49"):
        fit(spoil(3, labels=np.full(SIZE, 50)), folder=tmp_path)
    with pytest.raises(ValueError, match=r"batch 3 of epoch 0: expected ids of .* in 0 \.\.\. 49 .*, got 77"):
        fit(spoil(3, words=np.full(SIZE, 77)), folder=tmp_path)
    with pytest.raises(ValueError, match="expected integer labels of batch 3 of epoch 0, got float64"):
        fit(spoil(3, labels=np.ones(SIZE)))
    with pytest.raises(ValueError, match=r"batch 3 of epoch 0\['name'\]: expected an array of numbers, got str"):
        fit(spoil(3, name="x"))
    with pytest.raises(ValueError, match=r"batch 3 of epoch 0\['words'\]: expected integers of 32 bits"):
        fit(spoil(3, words=np.full(SIZE, 2**40)))
    with pytest.raises(ValueError, match=r"expected batches with labels .* got a dict of \['words'\]"):
        fit([{"words": a} for a, _ in pairs()])
    with pytest.raises(ValueError, match=r"expected batches with labels .* got a tuple of 3"):
        fit([(a, a, b) for a, b in pairs()])
    with pytest.raises(ValueError, match=r"got an array .*: a batch by itself goes into a list"):
        fit(pairs()[0])
    with pytest.raises(ValueError, match=r"got {.*}.* A batch by itself goes into a list"):
        fit(spoil(0)[0])
    with pytest.raises(ValueError, match=r"expected labels to be an array, got a list: np\.asarray"):
        fit(spoil(3, labels=[1] * SIZE))
    with pytest.raises(ValueError, match=r"candax\.Optimizer\(model, tx\) makes one"):
        fit(pairs(), make()[0], optax.sgd(0.1))
    with pytest.raises(ValueError, match=r"expected the model to return embeddings .* got a tuple"):
        fit([(words, labels) for words, labels in pairs()], *with_something_beside())
    without_call = nnx.Dict(head=make()[0].head)
    with pytest.raises(ValueError, match=r"expected a model that is called with the inputs, got a Dict: .* loss_fn"):
        fit(pairs(), without_call, cx.Optimizer(without_call, optax.sgd(0.1)))
    with pytest.raises(ValueError, match="expected num_steps to be an integer >= 0, got -1"):
        fit(pairs(), num_steps=-1)
    model, optimizer = make(optax.sgd(1e38))
    with pytest.raises(FloatingPointError, match=r"the loss is .* Lower the learning rate"):
        fit(pairs(), model, optimizer, num_steps=50)


class Unit(Model):
    """Embeddings of length 1: where there is no word, the gradient of the norm of 0 is NaN."""

    def __init__(self):
        super().__init__()
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, batch):
        h = self.scale * self.words(words_of(batch))
        return h / jnp.maximum(jnp.linalg.norm(h, axis=-1, keepdims=True), 1e-6)


@pytest.mark.parametrize(
    ("word", "accumulate", "error", "message"),
    [
        (NUM, 1, ValueError, r"batch 3 of epoch 0: expected ids of .* in 0 \.\.\. 49 .*, got 50"),
        (-1, 2, FloatingPointError, r"gradients, .* for batch 3 of epoch 0, at step 4: nothing was written"),
    ],
)
def test_a_step_that_writes_nothing_behind_a_finite_loss_ends_the_run(word, accumulate, error, message, tmp_path):
    batches, masked = pairs(), np.arange(SIZE) < 2
    words, labels = batches[3]
    batches[3] = np.where(masked, word, words), np.where(masked, -1, labels)
    for _ in range(2):  # what was saved, if anything, is of before the step
        model = Unit()
        with pytest.raises(error, match=message):
            fit(batches, model, cx.Optimizer(model, ADAM), accumulate=accumulate, folder=tmp_path)


@dataclasses.dataclass
class Scaled:
    """A loss that has no hash, as dataclasses have none that can be compared."""

    factor: float

    def __call__(self, head, batch):
        return self.factor * head.loss(batch, np.arange(2))


@pytest.mark.parametrize("given", [lambda loss: loss, lambda loss: loss.__call__], ids=["an object", "a method"])
def test_each_run_reads_anew_what_a_loss_of_one_s_own_reads(given):
    def run():
        head = cx.Head(NUM, DIM, sampler=SAMPLER, rngs=nnx.Rngs(0))
        found = fit([np.ones((2, DIM), np.float32)], head, cx.Optimizer(head, ADAM), num_steps=1, loss_fn=given(loss))
        return found.records[0]["loss"]

    loss = Scaled(1.0)
    whole = run()
    loss.factor = 0.5
    assert run() == pytest.approx(whole / 2)


def test_a_step_that_writes_nan_behind_a_finite_loss_is_not_saved(tmp_path):
    """The loss of a step is that of the weights before it: those after it are what a checkpoint holds."""

    def rates(step):
        return jnp.where(step < 4, 0.1, jnp.nan)

    model, optimizer = make(optax.sgd(rates))
    with pytest.raises(FloatingPointError, match="the model has NaN after step 5: it is not saved"):
        fit(pairs(), model, optimizer, num_steps=5, checkpoint_every=2, folder=tmp_path)
    loaded = cx.training.load(tmp_path, Model)
    assert loaded.step == 4
    assert np.isfinite(loaded.model.head.vectors[...]).all()


def test_reading_a_run_while_it_is_saved_leaves_it_alone(tmp_path):
    """Half of a checkpoint lies there while it is written; who reads must not clear it away."""
    fit(pairs(), num_steps=2, folder=tmp_path)
    half = tmp_path / "checkpoints" / "9.orbax-checkpoint-tmp"
    half.mkdir()
    cx.training.load(tmp_path, Model)
    cx.training.export(tmp_path, tmp_path / "out")
    assert half.exists()


def test_a_run_that_patience_has_ended_stays_so(tmp_path):
    falling = cx.training.Validation(
        pairs(1), lambda model, batches: -float(model.head.draws[...]), every=2, best="metric", patience=2
    )
    for _ in range(2):
        found = fit(pairs(), num_steps=20, validation=falling, folder=tmp_path)
        assert (found.step, found.stopped, found.best["step"]) == (6, "patience", 2)


@pytest.mark.parametrize(
    ("how", "accumulate", "message", "step"),
    [
        ("", 2, "batch 2 of epoch 0 to have a size .* accumulate=2, got 3: .*drop_remainder=True", 2),
        ("refuses", 1, "no such size.*This was in the step of batch 2 of epoch 0", 2),
        ("names", 1, "the same names for all batches", 3),
    ],
)
def test_a_last_batch_of_another_size_loses_nothing(how, accumulate, message, step, tmp_path):
    def loss_fn(head, batch):
        whole = len(batch) == SIZE
        if how == "refuses" and not whole:
            raise ValueError("no such size")
        return head.loss(batch, jnp.arange(len(batch))), {"a": jnp.ones(())} if how == "names" and whole else {}

    def make():
        head = cx.Head(NUM, DIM, sampler=SAMPLER, rngs=nnx.Rngs(0))
        return head, cx.Optimizer(head, ADAM)

    batches = [np.ones((size, DIM), np.float32) for size in (SIZE, SIZE, 3)]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        fit(batches, *make(), num_steps=None, accumulate=accumulate, loss_fn=loss_fn, folder=tmp_path)
    assert cx.training.load(tmp_path, make).step == step


def test_a_record_that_cannot_be_written_is_in_the_next_one(tmp_path, monkeypatch):
    write, full = MetricsLog.write, [True]

    def write_or_fail(self, record):
        if full:
            full.clear()
            raise OSError("no room")
        write(self, record)

    monkeypatch.setattr(MetricsLog, "write", write_or_fail)
    with pytest.raises(OSError, match="no room"):
        fit(pairs(), num_steps=8, folder=tmp_path)
    record = fit(pairs(), num_steps=8, folder=tmp_path).records[0]
    assert record["loss"] == pytest.approx(fit(pairs(), num_steps=8, log_every=8).records[0]["loss"])


def test_what_the_user_s_functions_raise_loses_nothing(tmp_path):
    validation = cx.training.Validation(pairs(1), lambda model, batches: np.ones(2), every=6)

    def late():
        yield from pairs(5)
        raise OSError("the disk is gone")  # batches are made one ahead, to know which is the last of an epoch

    runs = {
        "a metric": (pairs(), {"validation": validation}, "return a number", 6),
        "a loader": (late(), {}, "the disk is gone", 4),
        "labels": ([*pairs(7), (pairs()[0][0], np.full(SIZE, NUM))], {}, "expected labels of batch 7", 7),
        "a stop": (pairs(), {"callback": lambda step, metrics: "stop"}, "return True to stop", 4),
    }
    for name, (batches, options, message, step) in runs.items():
        with pytest.raises((ValueError, OSError), match=message):
            fit(batches, folder=tmp_path / name, **options)
        assert cx.training.load(tmp_path / name, Model).step == step, name


def test_a_measurement_that_is_made_again_takes_no_checkpoint_away(tmp_path, monkeypatch):
    def validation(value):
        def metric(model, batches):
            if value is None:
                raise RuntimeError("no room")
            return value

        return cx.training.Validation(pairs(1), metric, every=6, best="metric")

    def full(manager, *args, **options):
        if manager.directory.name == "checkpoints":
            raise OSError("the disk is full")
        return save(manager, *args, **options)

    with pytest.raises(RuntimeError, match="no room"):
        fit(pairs(), validation=validation(None), folder=tmp_path, keep=1)
    save = ocp.CheckpointManager.save
    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    with pytest.raises(OSError, match="the disk is full"):
        fit(pairs(), validation=validation(1.0), folder=tmp_path, keep=1)
    for best in (False, True):
        assert cx.training.load(tmp_path, Model, best=best).step == 6


def test_a_measurement_that_is_made_again_is_recorded_once(tmp_path, monkeypatch):
    """Also where the run is killed before its checkpoint says that it was made."""
    fails = [True, False]

    def metric(model, batches):
        if fails.pop(0):
            raise RuntimeError("no room")
        return 1.0

    def killed(checkpoints, validation):
        raise KeyboardInterrupt

    validation = cx.training.Validation(pairs(1), metric, every=6, best="metric")
    with pytest.raises(RuntimeError, match="no room"):
        fit(pairs(), num_steps=8, validation=validation, folder=tmp_path)
    monkeypatch.setattr(Checkpoints, "restate", killed)
    with pytest.raises(KeyboardInterrupt):
        fit(pairs(), num_steps=8, validation=validation, folder=tmp_path)
    monkeypatch.undo()
    fails.append(False)
    found = fit(pairs(), num_steps=8, validation=validation, folder=tmp_path)
    assert [record["step"] for record in found.records if "metric" in record] == [6]
    assert found.best == {"step": 6, "value": 1.0}


def test_a_validation_is_measured_although_the_callback_raises(tmp_path):
    def fail(step, metrics):
        raise RuntimeError("no more")

    validation = cx.training.Validation(pairs(1), count, every=4, best="number")
    with pytest.raises(RuntimeError, match="no more"):
        fit(pairs(), validation=validation, callback=fail, folder=tmp_path)
    found = fit(pairs(), validation=validation, folder=tmp_path)
    assert [r["step"] for r in found.records if "number" in r] == [4, 8, 12]
    assert found.best["step"] == 4


def test_others_keep_their_arrays():
    """Clones, copies of a validation, and arrays under two names: the step frees only its own."""
    model, optimizer = make()
    clone = nnx.clone(model)
    model.average = nnx.Variable(model.words.embedding[...])

    def probe(copy, batches):
        fit(pairs(), copy, cx.Optimizer(copy, ADAM), num_steps=1) if copy.train() is None else None
        return 0.0

    validation = cx.training.Validation(pairs(1), probe, every=2)
    fit(pairs(), model, optimizer, num_steps=4, validation=validation)
    assert np.isfinite(clone.words.embedding[...]).all()
    assert model.average[...].shape == (NUM, DIM)
