"""``fit`` with several steps in one call: the same steps, and everything that comes between them at the same places."""

import gc
import json
import weakref

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType

import candax as cx
from candax.data import prefetch
from candax.training.calls import as_here, calls
from candax.training.checkpoints import Checkpoints
from candax.training.feed import Fed
from tests.training.fitting import ADAM, DIM, NUM, SAMPLER, SIZE, Model, arrays, count, fit, make, pairs, same

MESH = jax.make_mesh((1,), ("classes",), axis_types=(AxisType.Auto,))


def lengths(batches, **options):
    """How many steps each call does, and the error at the end."""
    feed = (Fed(batch, 0, at, at == len(batches) - 1, None) for at, batch in enumerate(batches))
    found = list(calls(feed, options.pop("check", lambda fed: None), jax.device_put, **options))
    error = found.pop() if isinstance(found[-1], Exception) else None
    for feds, placed in found:
        stacked = feds[0].batch if len(feds) == 1 else jax.tree.map(lambda *of: np.stack(of), *(f.batch for f in feds))
        chex.assert_trees_all_equal(jax.device_get(placed), jax.tree.map(np.asarray, stacked))
    return [len(feds) for feds, _ in found], error


def test_a_call_ends_at_multiples_and_where_something_is_to_be_done():
    assert lengths(pairs(10)) == ([1] * 10, None)
    assert lengths(pairs(10), steps_per_call=4) == ([4, 4, 1, 1], None)
    assert lengths(pairs(8), steps_per_call=4, done=6) == ([1, 1, 4, 1, 1], None)
    assert lengths(pairs(8), steps_per_call=4, ends=lambda step, fed: step == 6) == ([4, 1, 1, 1, 1], None)
    assert lengths(pairs(8), steps_per_call=4, ends=lambda step, fed: step == 8) == ([4, 4], None)
    of_device = [jax.tree.map(jax.numpy.asarray, pair) for pair in pairs(4)]
    assert lengths(of_device, steps_per_call=4) == ([4], None)


def test_other_shapes_and_errors_end_a_call():
    shorter = [tuple(array[:5] for array in pair) for pair in pairs(2)]
    assert lengths([*pairs(6), *shorter], steps_per_call=4) == ([4, 1, 1, 1, 1], None)

    def check(fed):
        if fed.at == 6:
            raise ValueError("no")

    steps, error = lengths(pairs(8), steps_per_call=4, check=check)
    assert steps == [4, 1, 1]
    assert str(error) == "no"


@pytest.mark.parametrize("accumulate", [1, 2])
def test_several_steps_in_a_call_are_the_same_steps(accumulate, tmp_path):
    batches = [*pairs(9), tuple(array[:4] for array in pairs(1)[0])]
    wanted = fit(batches, num_steps=24, accumulate=accumulate)
    found = fit(batches, num_steps=24, accumulate=accumulate, steps_per_call=4)
    chex.assert_trees_all_close(arrays(found), arrays(wanted), rtol=1e-5, atol=1e-6)
    named = lambda run, name: [record[name] for record in run.records]  # noqa: E731
    assert named(found, "step") == named(wanted, "step")
    assert named(found, "loss") == pytest.approx(named(wanted, "loss"), rel=1e-5)


def test_a_run_that_stops_between_calls_goes_on_bit_for_bit(tmp_path):
    for num_steps in (8, 16, 20):
        parts = fit(pairs(), num_steps=num_steps, steps_per_call=4, folder=tmp_path / "parts")
    whole = fit(pairs(), num_steps=20, steps_per_call=4, folder=tmp_path / "whole")
    same(parts, whole)
    fit(pairs(), num_steps=7, steps_per_call=4, folder=tmp_path / "inside")
    inside = fit(pairs(), num_steps=20, steps_per_call=4, folder=tmp_path / "inside")
    chex.assert_trees_all_close(arrays(inside), arrays(whole), rtol=1e-5, atol=1e-6)


def test_what_comes_between_steps_comes_at_its_step(tmp_path):
    refreshed = cx.samplers.every(cx.samplers.learned_unigram(12), 6)

    def train(steps_per_call):
        model = Model()
        model.head.use(refreshed, cx.losses.css)
        validation = cx.training.Validation([1], count, every=5)
        seen = []
        found = fit(
            pairs(), model, cx.Optimizer(model, ADAM), num_steps=14, validation=validation, checkpoint_every=7,
            log_every=4, folder=tmp_path / str(steps_per_call), steps_per_call=steps_per_call,
            callback=lambda step, metrics: seen.append((step, sorted(metrics))),
        )  # fmt: skip
        return found, seen

    (wanted, expected), (found, seen) = train(1), train(3)
    assert seen == expected
    assert [step for step, names in seen if "loss" in names] == [4, 7, 8, 12, 14]
    assert [step for step, names in seen if "loss" not in names] == [5, 10]
    chex.assert_trees_all_close(arrays(found), arrays(wanted), rtol=1e-5, atol=1e-6)


def test_a_bad_batch_within_a_call_loses_nothing(tmp_path):
    batches = pairs()
    batches[6] = batches[6][0], np.full(SIZE, NUM)
    with pytest.raises(ValueError, match=r"labels of batch 6 of epoch 0 in 0 \.\.\. 49"):
        fit(batches, steps_per_call=4, folder=tmp_path)
    assert Checkpoints(tmp_path, identity=None, reads=True).latest_step == 6


def test_a_loss_that_is_not_finite_is_named_by_its_step_within_the_call():
    def loss(model, batch):
        words, labels = batch
        return model.head.loss(model(words), labels) / (words[0] != 1)

    batches = [(np.where(words == 1, 2, words), labels) for words, labels in pairs()]
    batches[6][0][0] = 1
    with pytest.raises(FloatingPointError, match="the loss is inf for batch 6 of epoch 0, at step 7"):
        fit(batches, loss_fn=loss, steps_per_call=4)
    model, optimizer = make(optax.sgd(1e38))
    with pytest.raises(FloatingPointError, match="Lower the learning rate"):
        fit(pairs(), model, optimizer, num_steps=50, steps_per_call=5)


def test_a_mesh_and_numbers_below_one_are_refused():
    with pytest.raises(ValueError, match="expected steps_per_call to be an integer >= 1, got 0"):
        fit(pairs(), steps_per_call=0)
    head = cx.Head(NUM, DIM, sampler=SAMPLER, mesh=MESH, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="expected steps_per_call=1 on a mesh and in several processes, got 4"):
        fit(pairs(), head, cx.Optimizer(head, ADAM), steps_per_call=4)


def test_batches_are_as_wide_as_the_thread_of_fit_has_them():
    def seen(model, batch):
        found.append(batch.dtype)
        return jnp.sum(model(batch) ** 2)

    for device in jax.devices()[:2]:
        found = []
        with jax.enable_x64(True), jax.default_device(device):
            model = nnx.Linear(2, 3, param_dtype=float, rngs=nnx.Rngs(0))
            cx.training.fit(model, cx.Optimizer(model, optax.sgd(0.1)), [np.ones((4, 2))], loss_fn=seen, progress=False)
            assert next(prefetch(as_here(map(jax.device_put, [np.ones(1)])))).devices() == {device}
        assert set(found) == {np.dtype(float)}
    assert jax.device_put(np.ones(1)).dtype == np.float32


def test_what_batches_say_of_themselves_holds_from_one_to_the_next():
    def wide():
        with jax.enable_x64(True):
            yield from (jnp.ones(1, float) for _ in range(3))

    assert [batch.dtype for batch in prefetch(as_here(wide()))] == [np.dtype(float)] * 3


def test_metrics_of_a_run_in_calls_are_read_by_others(tmp_path):
    fit(pairs(), num_steps=8, steps_per_call=4, folder=tmp_path)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [4, 8]
    assert all(isinstance(record["loss"], float) for record in records)


def test_batches_are_made_for_two_calls_at_most_and_none_after_the_last_step():
    made = []

    def source():
        for number, pair in enumerate(pairs(1000)):
            made.append(number)
            yield pair

    fit(source(), num_steps=8, steps_per_call=8, log_every=8)
    assert len(made) <= 9  # one is looked at to know which is the last
    made.clear()
    fit(source(), num_steps=1000, steps_per_call=8, log_every=8, callback=lambda step, _: step == 16)
    assert 16 <= len(made) <= 16 + 2 * 8 + 2


def test_a_first_call_is_on_the_clock_without_its_compilation():
    first, second = fit(pairs(), num_steps=80, steps_per_call=40, log_every=40).records
    assert first["seconds"] > 0.05 * second["seconds"]


def test_a_loss_may_draw_its_own_batch():
    labels = jax.numpy.arange(SIZE)
    for steps_per_call in (1, 4):
        loss = lambda model, _: model.head.loss(model(labels), labels)  # noqa: E731
        assert fit([()] * 8, num_steps=8, loss_fn=loss, steps_per_call=steps_per_call).step == 8


def test_a_variable_that_changes_its_dtype_is_told_of_calls(tmp_path):
    def loss(model, batch):
        model.seen.set_value(model.seen.get_value() + 0.5)
        return model.head.loss(model(batch[0]), batch[1])

    def train(steps_per_call):
        model = Model()
        model.seen = nnx.Variable(jax.numpy.zeros((), jax.numpy.int32))
        return fit(pairs(), model, cx.Optimizer(model, ADAM), loss_fn=loss, steps_per_call=steps_per_call)

    assert train(1).step == 12
    with pytest.raises(TypeError) as error:
        train(4)
    assert any("With steps_per_call above 1, a step may not change" in note for note in error.value.__notes__)


def test_a_loss_of_one_s_own_is_not_kept():
    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)
    fit(pairs(), loss_fn=lambda model, batch, held=held: model.head.loss(model(batch[0]), batch[1]), steps_per_call=4)
    del held
    gc.collect()
    assert gone() is None
