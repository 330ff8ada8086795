"""``fit`` with a model of one's own: batches of any kind, validation, callbacks, signals, resuming, exporting."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.training import feed
from candax.training.validation import numbers

NUM, DIM, SIZE = 50, 6, 8
# The same objects for all models, so that a step is compiled once.
SAMPLER, ADAM = cx.samplers.uniform(12), optax.adam(1e-2)


class Model(nnx.Module):
    """A table for words in and words out, with dropout and batch statistics."""

    def __init__(self, num=NUM):
        rngs = nnx.Rngs(0)
        self.words = cx.Embed(num, DIM, rngs=rngs)
        self.norm = nnx.BatchNorm(DIM, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = cx.Head(num, table=self.words, sampler=SAMPLER, rngs=rngs)

    def __call__(self, batch):
        return self.dropout(self.norm(self.words(words_of(batch))))


class Named(NamedTuple):
    words: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass
class Data:
    words: np.ndarray
    labels: np.ndarray


class Tensor:
    """What a torch tensor is to NumPy."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def words_of(batch):
    if isinstance(batch, dict):
        return batch["words"]
    return getattr(batch, "words", batch)


def pairs(number=10, seed=0):
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(0, NUM, (2, SIZE))) for _ in range(number)]


def make(tx=None, num=NUM):
    model = Model(num)
    return model, cx.Optimizer(model, ADAM if tx is None else tx, clip_norm=1.0)


def fit(batches, model=None, optimizer=None, **options):
    if model is None:
        model, optimizer = make()
    options = {"num_steps": 12, "log_every": 4, "progress": False, **options}
    return cx.training.fit(model, optimizer, batches, **options)


def arrays(fitted):
    leaves = jax.tree.leaves(nnx.state((fitted.model, fitted.optimizer)))
    return [np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x) for x in leaves]


def same(one, other):
    chex.assert_trees_all_equal(arrays(one), arrays(other))


def test_batches_of_any_kind_train_alike():
    wanted = fit(pairs())
    kinds = {
        "dicts": [{"words": a, "labels": b} for a, b in pairs()],
        "named tuples": [Named(*pair) for pair in pairs()],
        "dataclasses": [Data(*pair) for pair in pairs()],
        "tensors in lists": [[Tensor(a), Tensor(b)] for a, b in pairs()],
    }
    for name, batches in kinds.items():
        found = fit(batches)
        assert [r["loss"] for r in found.records] == pytest.approx([r["loss"] for r in wanted.records]), name
        same(found, wanted)
    found = fit((pair for pair in [*pairs(), *pairs()]), num_steps=12)
    same(found, wanted)


def test_it_is_layer_2_in_a_loop():
    model, optimizer = make()

    @nnx.jit
    def step(model, optimizer, words, labels):
        loss, grads = cx.value_and_grad(lambda model: model.head.loss(model(words), labels))(model)
        optimizer.update(model, grads)
        return loss

    losses = [float(step(model, optimizer, *pair)) for pair in pairs(4)]
    found = fit(pairs(4), num_steps=4)
    assert found.records[0]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    chex.assert_trees_all_close(
        arrays(found), [np.asarray(x) for x in jax.tree.leaves(raw((model, optimizer)))], rtol=1e-4, atol=1e-6
    )


def raw(nodes):
    keys = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    return jax.tree.map(keys, nnx.state(nodes))


def test_micro_batches_are_the_batch():
    class Plain(Model):
        def __call__(self, batch):
            return self.words(words_of(batch))

    def trained(accumulate):
        model = Plain()
        # Candidates that do not depend on the draw.
        model.head.use(None, cx.losses.full_softmax)
        labels = [(a, np.where(np.arange(SIZE) < 3, -1, b)) for a, b in pairs()]
        return fit(labels, model, cx.Optimizer(model, optax.sgd(0.5)), accumulate=accumulate)

    one, four = trained(1), trained(4)
    assert [r["loss"] for r in four.records] == pytest.approx([r["loss"] for r in one.records], rel=1e-5)
    chex.assert_trees_all_close(arrays(four)[:3], arrays(one)[:3], rtol=1e-4, atol=1e-6)


class Loader:
    """An iterator with a position, as grain's; ``get_state`` gives bytes."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return Iterator(self.batches)


class Iterator:
    def __init__(self, batches):
        self.batches, self.at = batches, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.batches):
            raise StopIteration
        self.at += 1
        return self.batches[self.at - 1]

    def get_state(self):
        return str(self.at).encode()

    def set_state(self, state):
        self.at = int(state)


class Stateful(Loader):
    """A loader with a position, as torchdata's."""

    start, at = 0, 0

    def __iter__(self):
        first, self.start = self.start, 0
        for at in range(first, len(self.batches)):
            self.at = at + 1
            yield self.batches[at]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.start = state["at"]


@pytest.mark.parametrize("kind", [list, Loader, Stateful])
@pytest.mark.parametrize("stop", [5, 10])
def test_a_run_in_parts_is_the_whole_run(kind, stop, tmp_path):
    """Stopped within an epoch and at its end; the position is that of the batch used, not of one made ahead."""
    wanted = fit(kind(pairs()), num_steps=23)
    fit(kind(pairs()), num_steps=stop, folder=tmp_path)
    found = fit(kind(pairs()), num_steps=23, folder=tmp_path)
    same(found, wanted)
    model, optimizer = make()
    loaded = cx.training.load(tmp_path, lambda: (model, optimizer))
    assert loaded.step == 23
    assert (loaded.position["epoch"], loaded.position["index"]) == (2, 3)
    chex.assert_trees_all_equal(arrays(loaded), arrays(found))


def test_without_a_position_resuming_is_refused_unless_batches_are_skipped(tmp_path):
    class Anew:
        def __iter__(self):
            return iter(pairs())

    wanted = fit(Anew(), num_steps=23)
    fit(Anew(), num_steps=13, folder=tmp_path)
    with pytest.raises(ValueError, match=r"have no position to go on from: .* skip=True"):
        fit(Anew(), num_steps=23, folder=tmp_path)
    same(fit(Anew(), num_steps=23, folder=tmp_path, skip=True), wanted)


def test_epochs_and_batches_that_end():
    assert fit(pairs(5), num_steps=None).step == 5
    assert fit(pairs(5), num_steps=None, num_epochs=3).step == 15
    assert fit(iter(pairs(5)), num_steps=None).step == 5
    with pytest.raises(ValueError, match="expected batches for 12 steps, got batches for 5 steps only"):
        fit(iter(pairs(5)))
    with pytest.raises(ValueError, match="expected batches for 3 epochs, got batches for 5 steps only"):
        fit(iter(pairs(5)), num_steps=None, num_epochs=3)
    with pytest.raises(ValueError, match="an iterator that has been used already"):
        fit(iter([]))


def count(model, batches):
    return {"number": sum(1 for _ in batches), "training": float(not model.dropout.deterministic)}


def test_validation_keeps_the_best_and_stops():
    values = iter([3.0, 5.0, 4.0, float("nan"), 9.0])
    validation = cx.training.Validation(
        pairs(3), lambda model, batches: {**count(model, batches), "v": next(values)}, every=2, best="v", patience=2
    )
    found = fit(pairs(), validation=validation)
    assert found.stopped == "patience"
    assert found.step == 8
    assert found.best == {"step": 4, "value": 5.0}
    measured = [r for r in found.records if "v" in r]
    assert [r["number"] for r in measured] == [3.0] * 4
    assert all(r["training"] == 0 for r in measured)


def test_best_and_patience_are_part_of_the_checkpoint(tmp_path):
    def validation(values):
        values = iter(values)
        return cx.training.Validation(
            pairs(1), lambda model, batches: next(values), every=2, best="metric", mode="min", patience=3
        )

    best = []
    fit(pairs(), num_steps=4, validation=validation([5.0, 1.0]), folder=tmp_path)
    best.append(cx.training.load(tmp_path, make, best=True))
    found = fit(pairs(), num_steps=20, validation=validation([2.0, 3.0, 4.0, 5.0]), folder=tmp_path)
    assert (found.stopped, found.step, found.best) == ("patience", 10, {"step": 4, "value": 1.0})
    best.append(cx.training.load(tmp_path, Model, best=True))
    assert [one.step for one in best] == [4, 4]
    assert best[1].optimizer is None
    chex.assert_trees_all_equal(*(jax.tree.leaves(raw(one.model)) for one in best))


def test_metrics_are_means_over_all_that_counts():
    metric = cx.training.mean_over(lambda model, batch: {"v": (batch, batch < 9), "all": batch})
    found = metric(nnx.Dict(), [np.array([1.0, 9.0]), np.array([2.0, 3.0, 9.0])])
    assert found == {"v": pytest.approx(2.0), "all": pytest.approx(4.8)}
    with pytest.raises(ValueError, match=r"expected a metric to return a number .* got ndarray\[3\] for 'metric'"):
        numbers(np.ones(3))


def test_a_used_up_generator_is_no_validation():
    once = (pair for pair in pairs(2))
    validation = cx.training.Validation(once, count, every=2)
    with pytest.raises(ValueError, match="expected validation batches, got a generator without any"):
        fit(pairs(), validation=validation)
    again = cx.training.Validation(lambda: (pair for pair in pairs(2)), count, every="epoch")
    assert [r["number"] for r in fit(pairs(4), validation=again).records if "number" in r] == [2.0] * 3
    with pytest.raises(ValueError, match=r"expected the metric to return 'p', Validation\(best=\), got \['number'"):
        fit(pairs(), validation=cx.training.Validation(pairs(1), count, every=2, best="p"))


def test_what_is_done_while_training_leaves_the_trainer_unharmed(tmp_path):
    """Evaluating, diagnosing, saving and exporting, with whatever they do to the model that they are given."""

    def harm(model, batches):
        model.words.embedding[...] *= 0
        model.head.draws[...] += 7
        model.train()
        return float(jnp.sum(model(pairs(1)[0][0])))

    model, optimizer = make()

    def look(step, metrics):
        classes = model.head.classes()
        methods = [cx.diagnostics.Method("uniform", "css", cx.samplers.uniform, cx.losses.css)]
        query = jnp.ones((2, DIM)), jnp.array([[1], [2]])
        cx.diagnostics.diagnose(classes, *query, methods, num_sampled=[4], num_draws=8, key=jax.random.key(0))
        cx.training.export(tmp_path / "run", tmp_path / "out") if step > 4 else None
        model.head.top_k(jnp.ones((1, DIM)), 3)

    validation = cx.training.Validation(pairs(1), harm, every=3)
    found = fit(
        pairs(), model, optimizer, validation=validation, callback=look, folder=tmp_path / "run", checkpoint_every=4
    )
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
    with pytest.raises(ValueError, match="expected the callback to return True to stop, or None, got 'stop'"):
        fit(pairs(), callback=lambda step, metrics: "stop")


def test_a_callback_that_raises_loses_nothing(tmp_path):
    def fail(step, metrics):
        if step == 8:
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        fit(pairs(), callback=fail, folder=tmp_path)
    assert cx.training.load(tmp_path, Model).step == 8
    same(fit(pairs(), folder=tmp_path), fit(pairs()))


SCRIPT = """
import sys, time
from tests.training.test_fit import fit, pairs
fit(pairs(), num_steps=10000, log_every=5, folder=sys.argv[1], callback=lambda step, m: print(step, flush=True))
"""


def test_of_two_that_train_in_one_folder_the_second_is_refused(tmp_path):
    refused = []

    def again(step, metrics):
        if step == 8:
            with pytest.raises(ValueError, match="expected no other run to write to") as error:
                fit(pairs(), folder=tmp_path)
            refused.append(str(error.value))
            assert cx.training.load(tmp_path, Model).step > 0

    same(fit(pairs(), folder=tmp_path, checkpoint_every=4, callback=again), fit(pairs()))
    assert str(tmp_path) in refused[0]
    fit(pairs(), folder=tmp_path)


def test_asked_twice_it_leaves_at_once(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    # What was started in the background ignores SIGINT, unless it is told not to.
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script += SCRIPT.replace("print(step, flush=True)", "(print(step, flush=True), time.sleep(3600))")
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
    assert "Call fit with the same folder again to go on" in errors
    step = cx.training.load(tmp_path, Model).step
    assert step >= 10
    same(fit(pairs(), num_steps=step + 5, folder=tmp_path), fit(pairs(), num_steps=step + 5))


def test_it_trains_in_other_threads_too():
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(pairs(), num_steps=2)))
    thread.start()
    thread.join()
    assert found[0].step == 2


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
    with pytest.raises(ValueError, match="expected batches with labels"):
        fit([{"words": a} for a, _ in pairs()])
    with pytest.raises(ValueError, match="expected num_steps to be an integer >= 0, got -1"):
        fit(pairs(), num_steps=-1)
    model, optimizer = make(optax.sgd(1e38))
    with pytest.raises(FloatingPointError, match=r"the loss is .* Lower the learning rate"):
        fit(pairs(), model, optimizer, num_steps=50)


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


def test_a_model_in_evaluation_mode_is_refused():
    model, optimizer = make()
    with pytest.raises(ValueError, match=r"call model.train\(\)"):
        fit(pairs(), model, optimizer, callback=lambda step, metrics: model.eval())


def test_a_position_that_cannot_be_returned_to_is_no_start_from_the_beginning(tmp_path):
    class Anew:
        def __iter__(self):
            return iter(pairs())

    fit(Loader(pairs()), num_steps=5, folder=tmp_path)
    with pytest.raises(ValueError, match="have no position to go on from"):
        fit(Anew(), num_steps=8, folder=tmp_path)


def test_positions_of_any_kind_come_back():
    state = {"a": (1, [2.5, None]), 3: b"x", "rng": np.arange(3, dtype=np.uint8), "nested": {"b": True}}
    found = feed._decoded(json.loads(json.dumps(feed._encoded(state))))
    np.testing.assert_array_equal(found.pop("rng"), state.pop("rng"))
    assert found == state


@pytest.mark.parametrize("beside", [jnp.ones(3), {"a": jnp.ones(3)}, {"loss": jnp.ones(())}])
def test_what_stands_beside_a_loss_is_numbers_by_other_names(beside):
    def loss_fn(model, batch):
        return model.head.loss(model(batch[0]), batch[1]), beside

    with pytest.raises(ValueError, match=r"expected (loss_fn to return a loss|other names than \['loss'\])"):
        fit(pairs(), loss_fn=loss_fn)


def test_a_head_is_used_again_with_its_own_parts():
    rngs = nnx.Rngs(0)
    head = cx.Head(NUM, DIM, sampler=cx.samplers.uniform(12), transform=jnp.tanh, num_shards=2, rngs=rngs)
    h, labels = 9 * jnp.ones((2, DIM)), jnp.array([1, 2])
    before = head.loss(h, labels)
    head.use(head.sampler, head.loss_function)
    head.draws[...] = 0
    assert head.loss(h, labels) == before
