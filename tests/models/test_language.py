"""Language models: the LSTM's own backward pass, what is carried on, and what a transformer sees."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.models import LSTMLanguageModel, TextPart, TransformerLanguageModel
from candax.models.lstm import LSTMLayer


def words(rows, length, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 30, (rows, length)), jnp.int32)


def part(ids, fresh=True):
    return TextPart(ids, jnp.full(len(ids), fresh))


@pytest.fixture(scope="module")
def lstm():
    head = cx.Head(30, 8, rngs=nnx.Rngs(0))
    return LSTMLanguageModel(head, num_streams=3, rngs=nnx.Rngs(1))


def test_a_layer_is_that_of_flax_and_so_are_its_gradients():
    layer = LSTMLayer(6, rngs=nnx.Rngs(0))
    cell = nnx.OptimizedLSTMCell(6, 6, rngs=nnx.Rngs(0))
    cell.dense_i.kernel[...], cell.dense_h.kernel[...] = layer.of_input[...], layer.of_state[...]
    cell.dense_h.bias[...] = layer.bias[...]
    rng = np.random.default_rng(0)
    x, state = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((5, 3, 6), (2, 3, 6)))
    weights = jnp.asarray(rng.normal(size=(5, 3, 6)), jnp.float32)

    def ours(layer, x, state):
        states, last = layer(x, state)
        return jnp.sum(weights * states) + jnp.sum(last**2)

    def of_flax(cell, x, state):
        carry = state[1], state[0]
        states = []
        for at in x:
            carry, h = cell(carry, at)
            states.append(h)
        return jnp.sum(weights * jnp.stack(states)) + jnp.sum(carry[0] ** 2) + jnp.sum(carry[1] ** 2)

    value, found = nnx.value_and_grad(ours, argnums=(0, 1, 2))(layer, x, state)
    expected, wanted = nnx.value_and_grad(of_flax, argnums=(0, 1, 2))(cell, x, state)
    assert value == pytest.approx(float(expected), rel=1e-5)
    of_cell = wanted[0]
    pairs = [
        (found[0]["of_input"], of_cell["dense_i"]["kernel"]),
        (found[0]["of_state"], of_cell["dense_h"]["kernel"]),
        (found[0]["bias"], of_cell["dense_h"]["bias"]),
        (found[1], wanted[1]),
        (found[2], wanted[2]),
    ]
    for got, want in pairs:
        np.testing.assert_allclose(got[...], want[...], rtol=1e-4, atol=1e-5)


def test_two_parts_are_read_as_one_whole(lstm):
    ids = words(3, 8)
    whole, last = lstm.read(ids, lstm.start(3))
    first = lstm(part(ids[:, :5]))
    second = lstm(part(ids[:, 5:], fresh=False))
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=1), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lstm.carried[...], last, rtol=1e-5, atol=1e-6)


def test_a_fresh_stream_forgets_and_the_others_go_on(lstm):
    ids = words(3, 4, seed=1)
    lstm(part(ids))
    before = lstm.carried[...]
    found = lstm(TextPart(ids, jnp.array([False, True, False])))
    np.testing.assert_allclose(found[1], lstm.read(ids, lstm.start(3))[0][1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[0], lstm.read(ids, before)[0][0], rtol=1e-5, atol=1e-6)


def test_evaluation_starts_anew_and_changes_nothing(lstm):
    ids = words(5, 4)
    copy = nnx.clone(lstm)
    copy.eval()
    before = copy.carried[...].copy()
    np.testing.assert_allclose(copy(part(ids, fresh=False)), copy.read(ids, copy.start(5))[0], rtol=1e-6)
    assert (copy.carried[...] == before).all()
    with pytest.raises(ValueError, match="expected batches of 3 streams"):
        lstm(part(ids))


def test_a_step_carries_on_and_trains_rows_alone():
    head = cx.Head(30, table=cx.Embed(30, 8, rngs=nnx.Rngs(0)), sampler=cx.samplers.uniform(4), rngs=nnx.Rngs(0))
    model = cx.models.Classifier(LSTMLanguageModel(head, num_streams=2, dropout=0.3, rngs=nnx.Rngs(1)), head)
    optimizer = cx.Optimizer(model, optax.sgd(0.1))
    ids = words(2, 5)

    @nnx.jit
    def step(model, optimizer):
        def loss_fn(model):
            return model.head.loss(model(part(ids[:, :-1], fresh=False)), ids[:, 1:])

        loss, grads = cx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss, grads.rows["encoder.words"].ids

    before = model.encoder.carried[...]
    loss, ids_ = step(model, optimizer)
    assert jnp.isfinite(loss)
    assert len(ids_) < 30
    assert not (model.encoder.carried[...] == before).all()


def test_a_transformer_sees_its_context_and_nothing_before_the_text():
    head = cx.Head(30, 8, rngs=nnx.Rngs(0))
    options = {"num_blocks": 1, "num_heads": 2, "max_distance": 8}
    model = TransformerLanguageModel(head, context=3, **options, rngs=nnx.Rngs(1))
    ids = words(2, 7)
    found = model(part(ids))
    assert found.shape == (2, 4, 8)
    none = TransformerLanguageModel(head, **options, rngs=nnx.Rngs(1))
    np.testing.assert_allclose(found, none(part(ids))[:, 3:], rtol=1e-5, atol=1e-6)
    padded = jnp.concatenate([jnp.full((2, 3), -1, jnp.int32), ids[:, 3:]], axis=1)
    np.testing.assert_allclose(model(part(padded)), none(part(ids[:, 3:])), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="expected context >= 0"):
        TransformerLanguageModel(head, context=-1, rngs=nnx.Rngs(1))


def test_truncated_reading_starts_each_window_from_nothing():
    head = cx.Head(30, 8, rngs=nnx.Rngs(0))
    model = LSTMLanguageModel(head, num_streams=2, carry=False, rngs=nnx.Rngs(1))
    ids = words(2, 4)
    np.testing.assert_allclose(model(part(ids)), model(part(ids, fresh=False)))
    assert (model.carried[...] == 0).all()
