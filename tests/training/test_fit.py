"""``fit`` with a model of one's own: batches of any kind, validation, resuming."""

import dataclasses
import json
import shutil
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.training import feed
from candax.training.checking import has_nan
from candax.training.means import Means
from candax.training.metrics_log import MetricsLog
from candax.training.validation import numbers
from tests.training.fitting import (
    ADAM,
    DIM,
    NUM,
    SIZE,
    Data,
    Loader,
    Model,
    Named,
    Stateful,
    Tensor,
    arrays,
    count,
    fit,
    make,
    pairs,
    raw,
    same,
    words_of,
)


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
    same(fit(lambda: (pair for pair in pairs())), wanted)


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


def test_a_run_that_has_ended_says_that_nothing_was_trained(tmp_path, capsys):
    fit(pairs(2), num_steps=2, folder=tmp_path, progress=True)
    assert "nothing was trained" not in capsys.readouterr().out
    assert fit(pairs(2), num_steps=2, folder=tmp_path, progress=True).step == 2
    printed = " ".join(capsys.readouterr().out.split())
    assert "holds this run at step 2, its end: nothing was trained." in printed


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


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"more_labels": np.zeros((SIZE, 2), np.int32)}, "without more_labels with accumulate=2"),
        ({"of_classes": np.zeros(2 * SIZE, np.float32)}, rf"got shape \[{2 * SIZE}\] at batch\['of_classes'\]"),
        ({"scale": 2.0, "none": np.zeros((0, 2), np.int32)}, None),
    ],
)
def test_only_what_is_of_the_examples_is_cut_into_micro_batches(extra, message):
    class Plain(Model):
        def __call__(self, batch):
            return self.words(batch["words"]) * batch.get("scale", 1.0)

    def trained(accumulate):
        model = Plain()
        model.head.use(None, cx.losses.full_softmax)
        batches = [{"words": a, "labels": b, **extra} for a, b in pairs(2)]
        return fit(batches, model, cx.Optimizer(model, optax.sgd(0.5)), num_steps=2, accumulate=accumulate)

    if message is None:
        chex.assert_trees_all_close(arrays(trained(2))[:3], arrays(trained(1))[:3], rtol=1e-4, atol=1e-6)
        return
    with pytest.raises(ValueError, match=message):
        trained(2)


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


class NoBatches:
    batches_per_epoch, identity = 0, {}

    def __getitem__(self, position):
        raise AssertionError(position)


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
    with pytest.raises(ValueError, match="expected batches to train on, got NoBatches with 0 batches_per_epoch"):
        fit(NoBatches(), num_steps=3)


def test_validation_keeps_the_best_and_stops():
    values = iter([-np.inf, 5.0, 4.0, 4.5, 9.0])
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


def test_numbers_that_choose_no_best_end_the_run_with_an_error(tmp_path):
    def validation(*values, **options):
        values = iter(values)
        return cx.training.Validation(
            pairs(1), lambda model, batches: {"v": next(values)}, every=2, best="v", mode="min", **options
        )

    with pytest.raises(ValueError, match=r"expected numbers of 'v' .*, got nan after step 4\. .*-1 is no class"):
        fit(pairs(), validation=validation(3.0, np.nan, patience=5), folder=tmp_path)
    assert cx.training.load(tmp_path, Model).step == 4
    found = fit(pairs(), num_steps=6, validation=validation(2.0, 4.0), folder=tmp_path)
    assert [r["v"] for r in found.records if "v" in r] == [3.0, 2.0, 4.0]
    assert found.best == {"step": 4, "value": 2.0}
    with pytest.raises(ValueError, match="got inf after step 4, and no finite one before"):
        fit(pairs(), validation=validation(np.inf, np.inf, patience=2))


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
    # Of another metric nothing is compared with that value, nor counted.
    most = dataclasses.replace(validation([0.5]), mode="max")
    found = fit(pairs(), num_steps=12, validation=most, folder=tmp_path)
    assert (found.stopped, found.best) == (None, {"step": 12, "value": 0.5})
    assert cx.training.load(tmp_path, Model, best=True).step == 12


@pytest.mark.parametrize("failing", [4, 8, 12])
def test_a_measurement_that_failed_is_made_when_the_run_goes_on(failing, tmp_path):
    def validation(fails):
        def metric(model, batches):
            draws = float(model.head.draws[...])
            if fails and draws == failing:
                raise RuntimeError("no room")
            return -draws

        return cx.training.Validation(pairs(1), metric, every=4, best="metric", mode="min")

    options = {"folder": tmp_path, "checkpoint_every": 4}
    with pytest.raises(RuntimeError, match="no room"):
        fit(pairs(), validation=validation(True), **options)
    found = fit(pairs(), validation=validation(False), **options)
    assert (found.step, found.best) == (12, {"step": 12, "value": -12.0})
    assert cx.training.load(tmp_path, make, best=True).step == 12
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(r["step"], r["metric"]) for r in records if "metric" in r] == [(4, -4), (8, -8), (12, -12)]
    chex.assert_trees_all_equal(arrays(found), arrays(fit(pairs())))


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_measurement_whose_record_cannot_be_written_counts_once(mode, tmp_path, monkeypatch):
    """In one mode each is better than the last, in the other patience counts them."""
    write, full = MetricsLog.write, [True]

    def write_or_fail(self, record):
        if record["step"] == 6 and "metric" in record and full:
            full.clear()
            raise OSError("no room")
        write(self, record)

    monkeypatch.setattr(MetricsLog, "write", write_or_fail)

    def run(folder):
        validation = cx.training.Validation(
            pairs(1), lambda model, batches: float(model.head.draws[...]), every=2, best="metric", mode=mode, patience=3
        )
        return fit(pairs(), num_steps=10, validation=validation, folder=folder)

    with pytest.raises(OSError, match="no room"):
        run(tmp_path)
    found, whole = run(tmp_path), run(None)
    assert (found.step, found.stopped, found.best) == (whole.step, whole.stopped, whole.best)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "metric" in r] == list(range(2, whole.step + 1, 2))


def _copy(folder, target, tries=600):
    """Copies a folder that is written by other threads: anew, as long as files go away meanwhile."""
    for _ in range(tries):
        try:
            return shutil.copytree(folder, target)
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(target)
            time.sleep(0.1)
    raise AssertionError(f"{folder} was never at rest")


def test_the_best_that_a_checkpoint_states_stays_until_the_next_checkpoint(tmp_path):
    folder, copied = tmp_path / "run", tmp_path / "copied"

    def callback(step, metrics):
        if step == 7:  # better ones at 5, 6 and 7 have no checkpoint yet
            _copy(folder, copied)

    validation = cx.training.Validation(
        pairs(1), lambda model, batches: float(model.head.draws[...]), every=1, best="metric"
    )
    fit(pairs(), num_steps=8, validation=validation, folder=folder, checkpoint_every=4, callback=callback)
    assert cx.training.load(copied, make, best=True).step == 4
    assert cx.training.load(folder, make, best=True).step == 8


def test_a_run_without_a_best_gives_no_other_in_its_place(tmp_path):
    """Measurements of another name are no best of this one, and what is infinitely bad is none of any."""

    def validation(best):
        return cx.training.Validation(pairs(1), lambda model, batches: {"a": 1.0, "b": -np.inf}, every=2, best=best)

    fit(pairs(), num_steps=2, validation=validation("a"), folder=tmp_path)
    assert cx.training.load(tmp_path, Model, best=True).step == 2
    fit(pairs(), num_steps=4, validation=validation("b"), folder=tmp_path)
    for read in (cx.training.load, cx.training.export):
        with pytest.raises(ValueError, match=r"got none so far in .*infinite, or of another name.*Leave best out"):
            read(tmp_path, Model if read is cx.training.load else tmp_path / "out", best=True)


def test_metrics_are_means_over_all_that_counts():
    metric = cx.training.mean_over(lambda model, batch: {"v": (batch, batch < 9), "all": batch})
    found = metric(nnx.Dict(), [np.array([1.0, 9.0]), np.array([2.0, 3.0, 9.0])])
    assert found == {"v": pytest.approx(2.0), "all": pytest.approx(4.8)}
    of_five = np.ones((4, 5), np.float32)
    metric = cx.training.mean_over(lambda model, batch: {"v": batch})
    for weights in (of_five[:, :1], of_five[0], np.float32(2)):
        assert metric(nnx.Dict(), [(of_five, weights)]) == {"v": 1.0}
    assert np.isnan(metric(nnx.Dict(), [(of_five, np.float32(0))])["v"])
    with pytest.raises(ValueError, match=r"shape \[4\] with values of shape \[4, 1\]"):
        metric(nnx.Dict(), [(of_five[:, :1], of_five[:, 0])])
    with pytest.raises(ValueError, match=r"expected a metric to return a number .* got ndarray\[3\] for 'metric'"):
        numbers(np.ones(3))


class Called:
    """Batches that can be called as well."""

    def __iter__(self):
        return iter(pairs(2))

    def __call__(self):
        raise AssertionError


def test_a_used_up_generator_is_no_validation():
    once = (pair for pair in pairs(2))
    validation = cx.training.Validation(once, count, every=2)
    with pytest.raises(ValueError, match="expected validation batches, got a generator without any"):
        fit(pairs(), validation=validation)
    again = cx.training.Validation(lambda: (pair for pair in pairs(2)), count, every="epoch")
    assert [r["number"] for r in fit(pairs(4), validation=again).records if "number" in r] == [2.0] * 3
    second = cx.training.Validation(pairs(2), count, epochs=2)
    assert [r["step"] for r in fit(pairs(4), validation=second, num_steps=20).records if "number" in r] == [8, 16]
    with pytest.raises(ValueError, match="and every='epoch' with it, got 2 and 5"):
        cx.training.Validation(pairs(2), count, every=5, epochs=2)
    called = cx.training.Validation(Called(), count)
    assert called.measure(Model())["number"] == 2
    with pytest.raises(ValueError, match=r"expected the metric to return 'p', Validation\(best=\), got \['number'"):
        fit(pairs(), validation=cx.training.Validation(pairs(1), count, every=2, best="p"))


def test_a_model_in_evaluation_mode_is_refused():
    model, optimizer = make()
    with pytest.raises(ValueError, match=r"call model.train\(\)"):
        fit(pairs(), model, optimizer, callback=lambda step, metrics: model.eval())
    model.head.use(None, cx.losses.full_softmax)
    with pytest.raises(ValueError, match=r"call model.train\(\)"):
        fit(pairs(), model, optimizer, num_steps=0)
    model.train()
    model.teacher = cx.Head(NUM, DIM, rngs=nnx.Rngs(0))
    model.teacher.eval()
    fit(pairs(), model, cx.Optimizer(model, ADAM), num_steps=0)


def test_a_position_that_cannot_be_returned_to_is_no_start_from_the_beginning(tmp_path):
    class Anew:
        def __iter__(self):
            return iter(pairs())

    fit(Loader(pairs()), num_steps=5, folder=tmp_path)
    for batches, name in ((Anew(), "Anew"), (lambda: iter(pairs()), "function")):
        with pytest.raises(ValueError, match=rf"its batches \({name}\) have no position to go on from"):
            fit(batches, num_steps=8, folder=tmp_path)


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


def test_batches_whose_losses_have_other_numbers_beside_them_are_refused():
    means = Means({})
    means.add((jnp.float32(1.0), {"a": jnp.float32(1.0)}), 8)
    means.add((jnp.float32(1.0), {}), 8)
    with pytest.raises(ValueError, match=r"the same names for all batches, got \['a'\] and \[\]"):
        means.of_all()


def test_a_damaged_line_of_the_metrics_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    record = b'{"step": 2, "seconds": 1.0}\n'
    path.write_bytes(record + b'{"step": 4, "sec')
    assert MetricsLog(path, resumed_step=9).records == [{"step": 2, "seconds": 1.0}]
    for line in (b'{"step": 4, "sec', b"3", b"\xff\x00", b'{"loss": 1.0}'):
        path.write_bytes(record + line + b"\n" + record)
        with pytest.raises(ValueError, match=r"metrics.jsonl, line 2: expected a record .* delete this line"):
            MetricsLog(path, resumed_step=9)


@dataclasses.dataclass
class Counted:
    words: np.ndarray
    number: int = dataclasses.field(init=False)

    def __post_init__(self):
        self.number = len(self.words)


def test_fields_that_a_dataclass_sets_itself_are_no_arrays_of_the_batch():
    batch = feed.on_host(Counted(np.arange(3)), "batch")
    assert len(jax.tree.leaves(batch)) == 1
    assert batch.number == 3


def test_a_head_is_used_again_with_its_own_parts():
    rngs = nnx.Rngs(0)
    head = cx.Head(NUM, DIM, sampler=cx.samplers.uniform(12), transform=jnp.tanh, num_shards=2, rngs=rngs)
    h, labels = 9 * jnp.ones((2, DIM)), jnp.array([1, 2])
    before = head.loss(h, labels)
    head.use(head.sampler, head.loss_function)
    head.draws[...] = 0
    assert head.loss(h, labels) == before


@pytest.mark.parametrize("kind", [list, Loader, Stateful])
def test_a_run_of_whole_epochs_that_is_over_is_returned_as_it_is(kind, tmp_path):
    options = {"num_steps": None, "num_epochs": 2, "folder": tmp_path}
    first = fit(kind(pairs(3)), **options)
    again = fit(kind(pairs(3)), **options)
    assert (first.step, again.step) == (6, 6)
    longer = fit(kind(pairs(3)), **{**options, "num_epochs": 3})
    assert longer.step == 9


def test_a_model_that_an_exact_optimizer_has_trained_is_loaded_without_it(tmp_path):
    model = Model()
    optimizer = cx.Optimizer(model, ADAM, tables=cx.rows.exact_adam(1e-2))
    validation = cx.training.Validation(pairs(1), lambda model, batches: 1.0, every=2, best="metric")
    found = fit(pairs(), model, optimizer, num_steps=3, folder=tmp_path, validation=validation)
    loaded = cx.training.load(tmp_path, Model)
    assert (loaded.step, loaded.optimizer) == (3, None)
    chex.assert_trees_all_equal(raw(loaded.model)["head"]["vectors"], raw(found.model)["head"]["vectors"])
    assert cx.training.load(tmp_path, Model, best=True).step == 2


class Scaled(Model):
    """With variables that hold Python's numbers."""

    def __init__(self):
        super().__init__()
        self.scale, self.count = nnx.Param(1.0), nnx.Variable(0)

    def __call__(self, batch):
        return super().__call__(batch) * self.scale[...]


def test_variables_may_hold_numbers_of_python(tmp_path):
    model = Scaled()
    found = fit(pairs(), model, cx.Optimizer(model, ADAM), num_steps=3, folder=tmp_path)
    assert float(model.scale[...]) != 1
    assert cx.training.load(tmp_path, Scaled).model.scale[...] == found.model.scale[...]


def test_a_parameter_that_a_callback_has_set_to_a_number_of_python_is_looked_at():
    assert not has_nan(nnx.Dict(scale=nnx.Param(0.5), count=nnx.Param(1)))
    assert has_nan(nnx.Dict(scale=nnx.Param(float("nan"))))
