"""What does not fit is an error that says what was expected, what came and what to do; no gradient is lost silently."""

import functools
import warnings

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from flax import nnx
from flax.errors import TraceContextError

import candax as cx

CLASSES, DIM = 40, 4
UNIFORM = cx.samplers.uniform(8)
VECTORS = np.random.default_rng(0).normal(size=(CLASSES, DIM)).astype(np.float32)
EMBEDDINGS = np.random.default_rng(1).normal(size=(2, 3, DIM)).astype(np.float32)
LABELS = np.array([[1, 2, 3], [4, 5, 39]], np.int32)


@pytest.fixture(autouse=True)
def without_type_checks():
    """What users see, who have no run-time type checker."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def pure_loss(embeddings=EMBEDDINGS, labels=LABELS, **changed):
    classes = cx.Classes(jnp.asarray(VECTORS))
    key = jax.random.key(0)
    options = {"sampler": UNIFORM, "state": UNIFORM.init(key, classes), "key": key, "loss": cx.losses.css, **changed}
    return cx.sampled_loss(jnp.asarray(embeddings), labels, classes, **options)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint8, np.uint16, np.uint32, np.int32])
def test_labels_of_every_integer_type_are_taken(dtype):
    assert float(pure_loss(labels=LABELS.astype(dtype))) == float(pure_loss())


def test_a_prediction_without_axes_takes_a_number_of_numpy():
    one, labels = EMBEDDINGS[0, 0], LABELS[0, 0]
    assert labels.shape == ()
    assert float(pure_loss(embeddings=one, labels=labels)) == float(
        pure_loss(embeddings=one, labels=jnp.asarray(labels))
    )
    with pytest.raises(ValueError, match="expected labels to be an array of integers"):
        pure_loss(embeddings=one, labels=np.float32(3))


def test_sixty_four_bit_labels_do_not_wrap_around():
    with jax.enable_x64(True):
        assert np.isnan(float(pure_loss(labels=jnp.asarray(LABELS, jnp.int64) + 2**32)))


@pytest.mark.parametrize("label", [2**32 + 1, -(2**32) + 1, 2**63])
def test_ids_of_more_than_32_bits_are_no_other_ids(label):
    labels = np.where(LABELS[0, 0] == LABELS, label, LABELS.astype(np.uint64 if label == 2**63 else np.int64))
    assert np.isnan(float(pure_loss(labels=labels)))
    head, embed = cx.Head(CLASSES, DIM, rngs=nnx.Rngs(0)), cx.Embed(CLASSES, DIM, rngs=nnx.Rngs(0))
    assert np.isnan(head.log_prob(EMBEDDINGS, labels)[0, 0])
    assert np.isnan(embed(labels)[0, 0]).all()
    with pytest.raises(ValueError, match="expected"):
        cx.check(embed, labels)
    best = np.asarray(head.top_k(EMBEDDINGS, 1)[1])
    np.testing.assert_array_equal(head.top_k(EMBEDDINGS, 1, exclude=best.astype(np.int64) + 2**32)[1], best)


WRONG_LABELS = {
    "float": (LABELS.astype(np.float32), "labels to be an array of integers"),
    "bool": (LABELS > 2, "labels to be an array of integers"),
    "one-hot of floats": (np.eye(CLASSES, dtype=np.float32)[LABELS], "argmax"),
    "one-hot of integers": (np.eye(CLASSES, dtype=np.int32)[LABELS], "One-hot"),
    "another length": (LABELS[:, :2], "labels of shape"),
    "no place for labels": (LABELS[..., None][..., :0], "one place or more"),
    "too many axes": (LABELS[..., None, None], "labels of shape"),
}


@pytest.mark.parametrize("case", WRONG_LABELS)
def test_wrong_labels_are_refused(case):
    labels, message = WRONG_LABELS[case]
    with pytest.raises(ValueError, match=message):
        pure_loss(labels=labels)


WRONG_ARGUMENTS = {
    "embeddings that are ids": ({"embeddings": LABELS[..., None]}, "embeddings to be an array of floats"),
    "embeddings of another width": ({"embeddings": EMBEDDINGS[..., :3]}, "one width"),
    "where of another shape": ({"where": np.ones((2, 2), bool)}, "where to be bool"),
    "where of numbers": ({"where": np.ones((2, 3), np.float32)}, "where to be bool"),
    "weights of another shape": ({"weights": np.ones(2, np.float32)}, "weights to be float"),
    "weights that are a mask": ({"weights": np.ones((2, 3), bool)}, "A mask goes to where="),
    "weights below zero": ({"weights": np.full((2, 3), -1, np.float32)}, "weights >= 0, got -1"),
    "a margin for a loss": ({"loss": cx.losses.arcface}, "with_margin"),
    "an unknown reduction": ({"reduction": "average"}, "'mean', 'sum', 'none'"),
    "the factory of a sampler": ({"sampler": cx.samplers.uniform}, "call it"),
    "no sampler": ({"sampler": "uniform"}, "sampler to be a Sampler or None, got 'uniform'"),
    "a sampler of another number of classes": (
        {"state": cx.samplers.unigram(8).init(jax.random.key(0), cx.Classes(jnp.zeros((9, 4)), None, jnp.ones(9)))},
        "state of this sampler for 40 classes",
    ),
    "no key": ({"key": None}, "expected key="),
    "no loss": ({"loss": "css"}, "loss to be a function"),
    "an unknown keyword of a loss": ({"loss": functools.partial(cx.losses.css, margin=1.0)}, r"among \['complement'"),
    "a loss over all classes": ({"loss": cx.losses.full_softmax}, "scores all"),
    "a loss that is reduced": ({"loss": lambda logits: jnp.mean(cx.losses.css(logits))}, "one per prediction"),
    "blocks of nothing": ({"block_size": 0}, "block_size"),
    "vectors of another shape": ({"vectors": lambda ids: jnp.ones((3, DIM))}, r"to return \[14, dim\]"),
}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused(case):
    changed, message = WRONG_ARGUMENTS[case]
    with pytest.raises(ValueError, match=message):
        pure_loss(**changed)


def test_a_class_that_stands_twice_among_the_labels_counts_once():
    once = pure_loss(labels=np.stack([LABELS, np.full_like(LABELS, -1), LABELS[::-1]], axis=-1))
    twice = pure_loss(labels=np.stack([LABELS, LABELS, LABELS[::-1]], axis=-1))
    assert float(once) == pytest.approx(float(twice), rel=1e-6)
    many = np.full((2, 3, 70), -1, np.int32)
    many[..., 0], many[..., 30], many[..., 69] = LABELS, LABELS, LABELS[::-1]
    assert float(pure_loss(labels=many)) == pytest.approx(float(once), rel=1e-6)


@pytest.mark.parametrize("label", [CLASSES, -2, 10**9])
def test_a_label_out_of_range_makes_the_loss_nan_inside_jit(label):
    labels = LABELS.copy()
    labels[0, 1] = label
    assert np.isnan(float(jax.jit(lambda labels: pure_loss(labels=labels))(labels)))
    # but not where it does not count
    where = np.ones_like(LABELS, bool)
    where[0, 1] = False
    assert np.isfinite(float(pure_loss(labels=labels, where=where)))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.words = cx.Embed(CLASSES, DIM, rngs=rngs)
        self.head = cx.Head(CLASSES, DIM, sampler=UNIFORM, loss=cx.losses.css, rngs=rngs)

    def __call__(self, ids):
        return self.words(ids)


def model_loss(model, labels=LABELS):
    return model.head.loss(model(jnp.asarray(LABELS)), labels)


@pytest.fixture
def model():
    return Model(nnx.Rngs(0))


encode_jitted = nnx.jit(lambda model, ids: model(ids))

INSIDE = {
    "scan": lambda m, ids: jax.lax.scan(lambda total, i: (total + jnp.sum(m(i)), None), 0.0, ids)[0],
    "vmap": lambda m, ids: jnp.sum(jax.vmap(m)(ids)),
    "jit": lambda m, ids: jnp.sum(jax.jit(lambda i: m(i))(ids)),
    "nnx.jit": lambda m, ids: jnp.sum(encode_jitted(m, ids)),
    "remat": lambda m, ids: jnp.sum(jax.checkpoint(lambda i: m(i))(ids)),
    "cond": lambda m, ids: jnp.sum(jax.lax.cond(ids[0, 0] > 0, lambda: m(ids), lambda: m(ids + 1))),
    "a head's loss in vmap": lambda m, ids: jnp.sum(jax.vmap(lambda i: m.head.loss(jnp.ones((3, DIM)), i))(ids)),
}


@pytest.mark.parametrize("where", INSIDE)
def test_a_lookup_inside_a_transformation_is_an_error(model, where):
    encode_jitted(model, jnp.asarray(LABELS))  # an evaluation that was traced before hides nothing
    with pytest.raises(ValueError, match="Look the rows up before"):
        cx.value_and_grad(INSIDE[where])(model, jnp.asarray(LABELS))


def test_the_same_lookups_outside_a_differentiation_work(model):
    assert np.isfinite(float(INSIDE["scan"](model, jnp.asarray(LABELS))))


def test_a_table_of_the_model_outside_the_function_is_an_error(model):
    with pytest.raises(ValueError, match="Use the function's own argument"):
        cx.value_and_grad(lambda inner: jnp.sum(model(LABELS)))(model)


def test_a_frozen_teacher_is_no_error(model):
    teacher = Model(nnx.Rngs(1))
    _, grads = cx.value_and_grad(lambda model: jnp.sum(model(LABELS) * teacher(LABELS)))(model)
    assert set(grads.rows) == {"words.embedding"}


def test_a_loss_that_is_no_number_is_an_error(model):
    with pytest.raises(ValueError, match="has_aux=True"):
        cx.value_and_grad(lambda model: model(LABELS))(model)


def test_what_is_no_module_is_an_error():
    with pytest.raises(ValueError, match=r"candax\.rows\.value_and_grad"):
        cx.value_and_grad(lambda x: jnp.sum(x))(jnp.ones(3))


def test_gradients_of_another_kind_are_refused(model):
    optimizer = cx.Optimizer(model, optax.sgd(0.1))
    with pytest.raises(ValueError, match=r"take candax\.value_and_grad in its place"):
        optimizer.update(model, nnx.grad(model_loss)(model))
    other = cx.value_and_grad(lambda head: head.loss(EMBEDDINGS, LABELS))(model.head)[1]
    optimizer.update(model, cx.value_and_grad(model_loss)(model)[1])
    with pytest.raises(ValueError, match="of the model that this optimizer was made for"):
        optimizer.update(model, other)


def look_up_gradients(number):
    table = cx.Embed(number, DIM, rngs=nnx.Rngs(0))
    return cx.value_and_grad(lambda table: jnp.sum(table(jnp.array([1, 2]))))(table)[1]


def test_row_gradients_refuse_arithmetic(model):
    _, grads = cx.value_and_grad(model_loss)(model)
    for function in (lambda: grads + grads, lambda: grads.rows["words.embedding"] + 1):
        with pytest.raises(TypeError, match=r"candax\.accumulate"):
            function()
    with pytest.raises(TypeError):
        jax.tree.map(jnp.add, grads, grads)
    with pytest.raises((TypeError, NotImplementedError, ValueError)):
        optax.global_norm(grads.rows)
    assert float((grads * 2.0).norm()) == pytest.approx(2 * float(grads.norm()), rel=1e-6)


def test_micro_batches_that_do_not_fit_are_refused(model):
    _, grads = cx.value_and_grad(model_loss)(model)
    with pytest.raises(ValueError, match="at least one micro-batch"):
        cx.accumulate([])
    with pytest.raises(ValueError, match="one weight per micro-batch"):
        cx.accumulate([grads, grads], weights=[1.0])
    with pytest.raises(ValueError, match="gradients to be a list of Gradients or a Gradients"):
        cx.accumulate([grads, 3])
    of_two = [look_up_gradients(number) for number in (4, 6)]
    with pytest.raises(ValueError, match=r"micro-batches of one shape, .* tables of \[4, 6\] rows"):
        cx.accumulate(of_two)


@pytest.mark.parametrize(
    "tx",
    [
        optax.adafactor(0.1),
        optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
        optax.lookahead(optax.sgd(0.1), 2, 0.5),
    ],
)
def test_optimizers_that_mix_rows_are_refused(model, tx):
    with pytest.raises(ValueError, match=r"rowwise: .* not elementwise"):
        cx.Optimizer(model, tx)
    with pytest.raises(ValueError, match=r"rowwise: .* not elementwise"):
        cx.rows.rowwise(tx)


def test_what_has_another_place_here_is_refused_with_that_place(model):
    collector = optax.MultiSteps(optax.sgd(0.1), 2)
    for give in (
        cx.rows.rowwise,
        functools.partial(cx.Optimizer, model),
        lambda tx: cx.Optimizer(model, optax.sgd(0.1), tables=tx),
    ):
        with pytest.raises(ValueError, match=r"several steps \(MultiSteps\).*candax\.accumulate.*fit\(accumulate=\)"):
            give(collector)
    for argnums in (nnx.DiffState(0, nnx.Param), (nnx.DiffState(0, nnx.Param),)):
        with pytest.raises(ValueError, match=r"got a DiffState: .* cx\.Optimizer\(wrt=\)"):
            cx.value_and_grad(model_loss, argnums=argnums)


WRONG_HEADS = {
    "an uncalled factory": ({"sampler": cx.samplers.uniform}, "call it"),
    "counts of another length": ({"counts": np.ones(3)}, "counts of shape"),
    "negative counts": ({"counts": -np.ones(CLASSES)}, "counts >= 0, got -1 for class 0"),
    "counts that are no numbers": ({"counts": np.full(CLASSES, np.nan)}, "counts >= 0, got nan"),
    "vectors of integers": ({"dtype": jnp.int32}, "dtype to be one of floats"),
    "a table of another library": ({"table": nnx.Embed(CLASSES, DIM, rngs=nnx.Rngs(0))}, "one of flax, which is"),
    "biases of a normalised head": ({"normalized": True, "biases": True}, "leave biases out"),
    "a table that is an array": ({"table": VECTORS}, r"head\.vectors\[\.\.\.\].*index, head\.use\(head\.sampler, "),
    "a table and computed vectors": (
        {"table": cx.rows.Table(jnp.asarray(VECTORS)), "vectors": lambda ids: ids},
        "both",
    ),
    "a table of a head that has none": (
        {"table": cx.Head(CLASSES, vectors=lambda ids: jnp.ones((len(ids), DIM)), rngs=nnx.Rngs(0))},
        "give vectors= the same module",
    ),
    "a table with too few rows": ({"table": cx.rows.Table(jnp.zeros((3, DIM)))}, "at least 40 rows"),
    "no dim": ({"dim": None}, "dim >= 1"),
    "an unknown keyword": ({"loss": functools.partial(cx.losses.nce, k=3)}, "keywords of the loss nce"),
}


@pytest.mark.parametrize("case", WRONG_HEADS)
def test_wrong_heads_are_refused(case):
    changed, message = WRONG_HEADS[case]
    options = {"dim": DIM, "sampler": UNIFORM, "rngs": nnx.Rngs(0), **changed}
    with pytest.raises(ValueError, match=message):
        cx.Head(CLASSES, **options)


def test_computed_vectors_that_would_lose_their_gradient_are_refused(model):
    held = model.words
    with pytest.raises(ValueError, match="Give the module itself"):
        cx.Head(CLASSES, vectors=lambda ids: held(ids), sampler=UNIFORM, rngs=nnx.Rngs(0))
    normalised = nnx.Sequential(cx.Embed(CLASSES, DIM, rngs=nnx.Rngs(0)), nnx.BatchNorm(DIM, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"take \(ids, where\)"):
        cx.Head(CLASSES, vectors=normalised, sampler=UNIFORM, rngs=nnx.Rngs(0))


def test_check_names_table_and_id(model):
    cx.check(model, LABELS, labels=LABELS)
    with pytest.raises(ValueError, match=r"ids of words\.embedding in 0 \.\.\. 39 .*got 40"):
        cx.check(model, LABELS + 1)
    with pytest.raises(ValueError, match=r"labels in 0 \.\.\. 39 .*got -2"):
        cx.check(model, LABELS, labels=LABELS - 3)
    with pytest.raises(ValueError, match="integer labels"):
        cx.check(model, LABELS, labels=LABELS / 2)
    with pytest.raises(ValueError, match=r"labels in 0 \.\.\. 39"):
        cx.check(model, LABELS + 1, call=model_loss)
    before = jax.tree.map(np.asarray, nnx.state(model))
    cx.check(model, LABELS, call=model_loss)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(np.all(a == b)), before, nnx.state(model)))


def test_a_sampler_that_nobody_refreshes_is_warned_of(monkeypatch):
    monkeypatch.setattr(cx.models.head.Refreshes, "called", False)
    sampler = cx.samplers.every(cx.samplers.uniform(8), 10)
    head = cx.Head(CLASSES, DIM, sampler=sampler, rngs=nnx.Rngs(0))
    with pytest.warns(UserWarning, match=r"candax\.refresh\(model, step\)"):
        head.loss(EMBEDDINGS, LABELS)
    cx.refresh(head, 0)
    head.loss(EMBEDDINGS, LABELS)


def test_training_in_evaluation_mode_is_warned_of(model, recwarn):
    optimizer = cx.Optimizer(model, optax.sgd(0.1))
    optimizer.update(model, cx.value_and_grad(model_loss)(model)[1])
    assert not recwarn.list
    model.eval()
    with pytest.warns(UserWarning, match=r"in evaluation mode: .* Call model\.train\(\)") as warned:
        nnx.jit(lambda model, optimizer: optimizer.update(model, cx.value_and_grad(model_loss)(model)[1]))(
            model, optimizer
        )
    assert [of.filename for of in warned] == [__file__]


def test_nothing_is_written_where_the_loss_is_not_finite(model):
    optimizer = cx.Optimizer(model, optax.adam(0.1), clip_norm=1.0)
    optimizer.update(model, cx.value_and_grad(model_loss)(model)[1])
    before = jax.tree.map(np.asarray, (nnx.state(model, nnx.Param), nnx.state(optimizer)))
    bad = LABELS.copy()
    bad[0, 0] = CLASSES
    loss, grads = cx.value_and_grad(model_loss)(model, bad)
    optimizer.update(model, grads)
    assert np.isnan(float(loss))
    assert int(optimizer.skipped[...]) == 1
    after = (nnx.state(model, nnx.Param), nnx.state(optimizer))
    changed = [
        jax.tree_util.keystr(path)
        for (path, old), new in zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True)
        if not np.array_equal(old, new)
    ]
    assert [name for name in changed if "step" not in name and "skipped" not in name] == []


@pytest.mark.parametrize("sampler", [None, UNIFORM])
def test_embeddings_as_wide_as_the_vectors_are_asked_for(sampler):
    head = cx.Head(CLASSES, DIM, sampler=sampler, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="as wide as"):
        head.loss(EMBEDDINGS[..., :3], LABELS)


def test_a_weight_that_is_no_number_does_not_count_where_its_prediction_does_not():
    where, weights = LABELS[0, 0] != LABELS, np.ones((2, 3), np.float32)
    weights[~where] = np.nan
    assert float(pure_loss(where=where, weights=weights)) == float(pure_loss(where=where))


def test_an_optimizer_of_another_model_is_refused():
    def head(dim):
        return cx.Head(20, dim, sampler=cx.samplers.uniform(4), rngs=nnx.Rngs(0))

    model, optimizer = head(4), cx.Optimizer(head(8), optax.adam(0.1))
    _, grads = cx.value_and_grad(lambda model: model.loss(jnp.ones((2, 4)), jnp.arange(2)))(model)
    with pytest.raises(ValueError, match=r"with vectors of shape \[rows, 8\], got one with \[rows, 4\]"):
        optimizer.update(model, grads)


@pytest.fixture
def debug_nans():
    jax.config.update("jax_debug_nans", True)
    yield
    jax.config.update("jax_debug_nans", False)


def test_debug_nans_stops_no_healthy_model(debug_nans):
    model = Model(nnx.Rngs(0))
    optimizer = cx.Optimizer(model, optax.sgd(jnp.float32(0.1)))
    padded = np.where(LABELS == 2, -1, LABELS)
    assert np.isfinite(model(padded)).all()
    loss, grads = cx.value_and_grad(lambda model: model.head.loss(model(padded), padded))(model)
    optimizer.update(model, grads)
    assert np.isfinite(float(loss))
    # Of a shape that no other test looks up: after any `with jax.debug_nans(False)`, of which an optimizer has one,
    # JAX looks only at what it has not called before.
    wrong = np.array([CLASSES] + 36 * [1])
    with pytest.raises(FloatingPointError):
        cx.value_and_grad(lambda model: jnp.sum(model(wrong)))(model)


def test_ids_of_padding_rows_are_out_of_range():
    words = cx.Embed(10, 2, num_shards=4, rngs=nnx.Rngs(0))
    assert words.embedding.shape == (12, 2)
    ids = np.array([9, -1, 10, 11, 12])
    wanted = [False, False, True, True, True]
    np.testing.assert_array_equal(np.isnan(words(ids)).all(axis=1), wanted)
    inside = cx.value_and_grad(lambda words: (jnp.sum(words(ids[:2])), words(ids)), has_aux=True)(words)[0][1]
    np.testing.assert_array_equal(np.isnan(inside).all(axis=1), wanted)
    with pytest.raises(ValueError, match=r"ids of embedding in 0 \.\.\. 9 .*got 11"):
        cx.check(words, np.array([11]))
    with pytest.raises(ValueError, match="at least 11 rows"):
        cx.Head(11, table=words, sampler=UNIFORM, rngs=nnx.Rngs(0))
    plain = cx.Embed(10, 2, rngs=nnx.Rngs(0))
    cx.rows.shard(plain, num_shards=4)
    np.testing.assert_array_equal(np.isnan(plain(ids)).all(axis=1), wanted)


def test_tables_may_hold_arrays_of_numpy(model):
    wanted, _ = cx.value_and_grad(model_loss)(nnx.clone(model))
    nnx.update(model, jax.tree.map(np.asarray, nnx.state(model)))
    assert isinstance(model.words.embedding.get_value(), np.ndarray)
    cx.check(model, LABELS, call=model_loss)
    rows, best = model(LABELS), model.head.top_k(EMBEDDINGS, 2)[1]
    assert isinstance(rows, jax.Array)
    assert best.shape == (2, 3, 2)
    optimizer = cx.Optimizer(model, optax.adam(0.1))
    loss, grads = cx.value_and_grad(model_loss)(model)
    optimizer.update(model, grads)
    assert float(loss) == float(wanted)
    made = cx.Embed(9, 2, embedding_init=lambda key, shape, dtype: np.ones(shape, dtype), rngs=nnx.Rngs(0))
    cx.check(made, np.arange(9))
    made.embedding.set_value(np.zeros((9, 2), np.float32))
    assert np.all(made(np.arange(3)) == 0)


def test_negative_ids_are_reported_as_they_are():
    words = cx.Embed(10, 2, rngs=nnx.Rngs(0))
    for dtype in (np.int32, np.int64):
        with pytest.raises(ValueError, match="got -100"):
            cx.check(words, np.array([1, -100], dtype))


def test_a_loss_with_something_beside_it_wants_has_aux():
    head = cx.Head(9, 2, sampler=cx.samplers.uniform(3), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"got a tuple: .* has_aux=True"):
        cx.value_and_grad(lambda head: (head.loss(np.ones((1, 2)), np.array([1])), 3.0))(head)


def test_update_takes_the_model_first():
    head = cx.Head(9, 2, sampler=cx.samplers.uniform(3), rngs=nnx.Rngs(0))
    optimizer = cx.Optimizer(head, optax.sgd(0.1))
    both = cx.value_and_grad(lambda head: head.loss(np.ones((1, 2)), np.array([1])))(head)
    with pytest.raises(ValueError, match="in this order, got a Gradients first"):
        optimizer.update(both[1], head)
    with pytest.raises(ValueError, match=r"got tuple\. It returns the loss and the gradients"):
        optimizer.update(head, both)
    np.testing.assert_allclose((both[1] / 2).norm(), both[1].norm() / 2, rtol=1e-6)


def test_a_sampler_is_shown_as_it_was_made():
    uniform = cx.samplers.uniform(5, replacement=False)
    assert repr(uniform) == "uniform(5, replacement=False)"
    assert repr(cx.samplers.mixture([uniform, cx.samplers.in_batch()])) == f"mixture([{uniform}, in_batch()])"
    assert "sharded" in repr(cx.samplers.sharded(uniform, 5))
    index = cx.samplers.exact_index(block_size=64)
    assert repr(cx.samplers.retrieved(index, 2)) == "retrieved(exact_index(block_size=64), 2)"
    assert repr(index._replace(share=None)) == "Retriever(exact)"
    with pytest.raises(ValueError, match=r"got sampler=uniform\(5, .* with the function full_softmax"):
        cx.Head(9, 2, sampler=uniform, loss=cx.losses.full_softmax, rngs=nnx.Rngs(0))


def test_counts_whose_sum_is_beyond_float32_are_refused():
    with pytest.raises(ValueError, match=r"whose sum float32 can hold, got 6e\+38"):
        cx.Head(9, 2, counts=np.r_[3e38, 3e38, np.ones(7)], sampler=UNIFORM, rngs=nnx.Rngs(0))


def test_classes_may_be_arrays_of_numpy():
    classes = cx.Classes(VECTORS, np.zeros(len(VECTORS), np.float32))
    assert isinstance(classes.vectors, jax.Array)
    assert isinstance(classes.biases, jax.Array)


def test_a_key_of_the_old_form_is_refused_with_what_to_do():
    head = cx.Head(9, 2, sampler=cx.samplers.uniform(4), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"a key of jax.random.key, got .* by jax.random.wrap_key_data\(key\)"):
        head.sample(jax.random.PRNGKey(0), jnp.ones((1, 2)))


def test_a_loss_in_a_transformation_without_its_head_says_what_to_do():
    head = cx.Head(9, 2, sampler=UNIFORM, rngs=nnx.Rngs(0))
    with pytest.raises(TraceContextError) as raised:
        jax.grad(lambda h: head.loss(h, np.arange(3)))(jnp.ones((3, 2)))
    assert any("as an argument to nnx.jit" in note for note in raised.value.__notes__)


def test_lists_for_labels_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"Lists become arrays by np\.asarray; .* with -1"):
        pure_loss(labels=[[1, 2], [3]])


WITH_ARCFACE = cx.losses.with_margin(functools.partial(cx.losses.arcface, scale=8.0), cx.losses.subset_softmax)
OF_COSINES = {
    "arcface": (WITH_ARCFACE, UNIFORM),
    "arcface of each label": (cx.losses.each_label(WITH_ARCFACE), UNIFORM),
    "arcface over all classes": (cx.losses.over_all_classes(WITH_ARCFACE), None),
    "d_softmax": (functools.partial(cx.losses.d_softmax, scale=8.0), UNIFORM),
}


@pytest.mark.parametrize("case", OF_COSINES)
def test_a_loss_of_cosines_warns_on_a_head_whose_logits_are_none(case):
    loss, sampler = OF_COSINES[case]
    with pytest.warns(UserWarning, match=f"{case.split()[0]} takes cosines, .* normalized=True") as warned:
        cx.Head(9, 2, sampler=sampler, loss=loss, rngs=nnx.Rngs(0))
    assert [of.filename for of in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cx.Head(9, 2, sampler=sampler, loss=loss, normalized=True, rngs=nnx.Rngs(0))
        cx.Head(9, vectors=lambda ids: jnp.ones((len(ids), 1)), sampler=sampler, loss=loss, rngs=nnx.Rngs(0))
        of_my_own = cx.losses.with_margin(lambda logits: logits, cx.losses.css)
        cx.Head(9, 2, sampler=UNIFORM, loss=of_my_own, rngs=nnx.Rngs(0))


def test_logits_for_embeddings_are_refused_with_what_to_do():
    head = cx.Head(9, 2, sampler=UNIFORM, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="not its logits"):
        head.loss(head(jnp.ones((3, 2))), np.arange(3))


def test_candidates_without_groups_are_refused():
    def sample(*args):
        return jax.tree.map(lambda part: part[0], UNIFORM.sample(*args))

    with pytest.raises(ValueError, match=r"candidates \[groups, slots\], .* got ids of shape \[8\]"):
        pure_loss(sampler=UNIFORM._replace(sample=sample))


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (lambda logits: jnp.mean(logits.true), r"an array float32\[\]"),
        (lambda logits: logits.true, r"an array float32\[2, 1\]"),
        (lambda logits: None, "None"),
    ],
)
def test_a_loss_without_a_number_per_prediction_is_refused(loss, got):
    head = cx.Head(9, DIM, sampler=UNIFORM, loss=loss, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=f"expected a loss that returns 2 numbers, one per prediction, got {got}"):
        head.loss(jnp.ones((2, DIM)), jnp.arange(2))


def test_an_optimizer_of_no_variable_warns():
    head = cx.Head(9, 2, sampler=UNIFORM, rngs=nnx.Rngs(0))
    with pytest.warns(UserWarning, match="nothing will be trained") as warned:
        cx.Optimizer(head, optax.sgd(0.1), wrt=nnx.PathContains("words"))
    assert [of.filename for of in warned] == [__file__]
