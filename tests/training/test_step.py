"""One training step: equal to an ordinary dense step, row-sparse, donated, compiled once, of constant cost."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.base import Candidates, Facts, Sampler, never, no_update
from tests.training import problems

SAMPLERS = {
    "uniform": cx.samplers.uniform(12),
    "uniform, a set an example": cx.samplers.uniform(12, num_groups=None),
    "log_uniform, no replacement": cx.samplers.log_uniform(12, num_groups=4, replacement=False),
    "unigram": cx.samplers.unigram(12),
    "top_k": cx.samplers.top_k(5),
}


def some_of(names):
    """Shared sets, and distinct ones for several groups; the others are among the slow tests."""
    quick = ("uniform", "log_uniform, no replacement")
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def everything() -> Sampler:
    """All classes as candidates with expected count 1: sampled losses become the full softmax."""

    def sample(state, key, query):
        ids = jnp.arange(query.classes.num_classes, dtype=jnp.int32)[None]
        return Candidates(ids, jnp.zeros(ids.shape), ids < query.classes.num_valid)

    return Sampler(
        init=lambda key, classes: (),
        sample=sample,
        log_expected_count=lambda state, candidates, ids, query: jnp.zeros(ids.shape),
        update=no_update,
        refresh=lambda state, key, classes: state,
        schedule=never,
        facts=Facts(covers_all=True, draw_independent=True, with_replacement=False),
    )


def run(program, steps, batches=None):
    batches = problems.Source() if batches is None else batches
    state = program.init(0)
    losses = []
    for step in range(steps):
        state, loss = program.step(state, batches[0, step])
        losses.append(float(loss))
    return state, losses


def assert_parameters_close(one, other):
    params = [jax.tree.leaves(nnx.state(state.nodes[0].encoder, nnx.Param)) for state in (one, other)]
    chex.assert_trees_all_close(*params, rtol=1e-4, atol=1e-6)


# Each loss, each optimizer, with and without clipping; all combinations are among the slow tests.
QUICK = [("css", "sgd", None), ("sampled_softmax", "adagrad", 0.05), ("subset_softmax", "sgd", 0.05)]
COMBINATIONS = [
    (loss, optimizer, clip_norm)
    for loss in ("css", "sampled_softmax", "subset_softmax")
    for optimizer in ("sgd", "adagrad")
    for clip_norm in (None, 0.05)
]


@pytest.mark.parametrize(
    ("loss", "optimizer", "clip_norm"),
    [entry if entry in QUICK else pytest.param(*entry, marks=pytest.mark.slow) for entry in COMBINATIONS],
)
def test_all_classes_as_candidates_train_like_the_full_softmax(loss, optimizer, clip_norm):
    loss, optimizer = getattr(cx.losses, loss), getattr(optax, optimizer)(0.1)
    # Neither optimizer moves an unused row, so row-sparse and dense training agree on the bag of embeddings too.
    sparse, sparse_losses = run(problems.program(everything(), loss, optimizer, clip_norm=clip_norm), 5)
    dense, dense_losses = run(problems.program(None, cx.losses.full_softmax, optimizer, clip_norm=clip_norm), 5)
    np.testing.assert_allclose(sparse_losses, dense_losses, rtol=1e-5)
    chex.assert_trees_all_close(sparse.tables, dense.tables, rtol=1e-4, atol=1e-6)
    assert_parameters_close(sparse, dense)


def test_a_step_is_the_ordinary_dense_step():
    """Against the textbook: one gradient of everything, tables dense, by jax.grad and optax."""
    optimizer = optax.sgd(0.1)
    program = problems.program(None, cx.losses.full_softmax, optimizer)
    batch = problems.Source()[0, 0]
    state, loss = program.step(program.init(0), batch)
    model = problems.model()
    graph, variables = nnx.split(model)

    def mean_loss(variables):
        model = nnx.merge(graph, variables)
        return jnp.mean(cx.losses.full_softmax(model(batch), jnp.asarray(batch.labels), model.head.classes()))

    expected, grads = jax.value_and_grad(mean_loss)(variables)
    trained = nnx.merge(graph, jax.tree.map(lambda value, grad: value - 0.1 * grad, variables, grads))
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(state.tables["class_vectors"], trained.head.vectors[...], atol=1e-6)
    np.testing.assert_allclose(state.tables["class_biases"], trained.head.biases[...], atol=1e-6)
    np.testing.assert_allclose(state.tables["encoder.bag"], trained.encoder.bag[...], atol=1e-6)
    program.update_model(state)


@pytest.mark.parametrize("name", some_of(SAMPLERS))
def test_rows_that_a_step_does_not_use_stay_bit_identical(name):
    traced = []

    def css(*inputs):
        traced.append(name)
        return cx.losses.css(*inputs)

    program = problems.program(SAMPLERS[name], css)
    batches = problems.Source(batch_size=4)
    before = program.init(0)
    start = jax.tree.map(np.array, before.tables)
    after, _ = program.step(before, batches[0, 0])
    changed = {name: np.any(np.reshape(after.tables[name] != start[name], (len(start[name]), -1)), 1) for name in start}
    used = np.unique(batches[0, 0].feature_ids)
    assert set(np.flatnonzero(changed["encoder.bag"])) <= set(used[used >= 0])
    labels = np.unique(batches[0, 0].labels)
    assert set(labels[labels >= 0]) <= set(np.flatnonzero(changed["class_biases"]))
    assert 0 < changed["class_vectors"].sum() < problems.NUM_CLASSES
    of_one_step = len(traced)
    program.step(after, batches[0, 1])
    assert of_one_step > 0
    assert len(traced) == of_one_step  # a second step does not compile again


# Five hard classes alone, uncorrected, do not teach the others anything: top_k is no part of this.
LEARNERS = [(name, cx.losses.css) for name in SAMPLERS if name != "top_k"]
LEARNERS += [("uniform", loss) for loss in (cx.losses.sampled_softmax, cx.losses.subset_softmax)]


@pytest.mark.parametrize(
    ("name", "loss"),
    [pytest.param(*entry, marks=() if entry[0] == "uniform" else pytest.mark.slow) for entry in LEARNERS],
)
def test_training_learns(name, loss):
    model = problems.model()
    program = cx.training.build(model, sampler=SAMPLERS[name], loss=loss, optimizer=optax.adam(3e-2))
    state = program.init(0)
    batches = problems.Source(batch_size=64, num_labels=1, batches_per_epoch=200)
    for i in range(200):
        state, _ = program.step(state, batches[0, i])
    program.update_model(state)
    unseen = problems.Source(batch_size=512, num_labels=1)[1, 0]
    logits = model(unseen) @ model.head.vectors[...].T + model.head.biases[...]
    # The label is one of the five features, and the input does not say which: any is a good answer, chance is .08.
    best = np.argmax(logits, axis=1)
    assert np.mean(np.any(best[:, None] == unseen.feature_ids, axis=1)) > 0.4


def test_the_model_survives_the_donation_of_the_state():
    model = problems.model()
    program = cx.training.build(
        model, sampler=cx.samplers.unigram(5), loss=cx.losses.css, optimizer=optax.sgd(0.1, momentum=0.9)
    )
    start = np.array(model.head.vectors[...])
    for _ in range(2):
        state, _ = program.step(program.init(0), problems.Source()[0, 0])
        np.testing.assert_array_equal(model.head.vectors[...], start)
    program.update_model(state)
    program.step(state, problems.Source()[0, 1])
    assert np.any(np.asarray(model.head.vectors[...]) != start)


@pytest.mark.parametrize("name", ["uniform", "log_uniform, no replacement"])
def test_a_function_that_makes_the_model_trains_like_the_model(name):
    sampler = SAMPLERS[name]
    results = []
    for model in (problems.model(), problems.model):
        program = cx.training.build(model, sampler=sampler, loss=cx.losses.css, optimizer=optax.adam(0.1))
        results.append(program.step(program.init(3), problems.Source()[0, 0]))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="which was a function"):
        program.update_model(results[1][0])


def test_starting_a_function_s_model_holds_its_table_once():
    num_classes, dim = 1 << 21, 64

    def model():
        head = cx.models.Head(num_classes, dim, rngs=nnx.Rngs(0))
        return cx.models.Classifier(cx.models.SparseMLP(40, dim, rngs=nnx.Rngs(1)), head)

    program = cx.training.build(model, sampler=cx.samplers.uniform(10), loss=cx.losses.css, optimizer=optax.sgd(0.1))
    memory = jax.jit(lambda: program.init(0)).lower().compile().memory_analysis()
    table = 4 * num_classes * dim
    assert memory.output_size_in_bytes + memory.temp_size_in_bytes < 1.4 * table


def test_refresh_keeps_the_structure_of_the_state():
    program = problems.program(SAMPLERS["log_uniform, no replacement"], cx.losses.css)
    state = program.init(0)
    like = jax.eval_shape(lambda: state)
    chex.assert_trees_all_equal_shapes_and_dtypes(program.refresh(state), like)


def test_same_seed_same_result():
    sampler = SAMPLERS["uniform"]
    once, again = (run(problems.program(sampler, cx.losses.css), 4) for _ in range(2))
    chex.assert_trees_all_equal(*(jax.tree.leaves(state) for state, _ in (once, again)))
    assert once[1] == again[1]


class Tied(nnx.Module):
    """Words in, words out, one table for both."""

    def __init__(self, words: cx.models.Table) -> None:
        self.words = words

    def __call__(self, batch):
        return jnp.einsum("bf,bfd->bd", batch.feature_values, cx.rows.lookup(self.words, batch.feature_ids))


def test_a_tied_table_is_trained_from_both_of_its_uses():
    head = cx.models.Head(problems.NUM_CLASSES, 8, rngs=nnx.Rngs(1))
    model = cx.models.Classifier(Tied(head.vectors), head)
    batch = problems.Source()[0, 0]

    def mean_loss(vectors, biases):
        embeddings = jnp.einsum("bf,bfd->bd", batch.feature_values, vectors[jnp.maximum(batch.feature_ids, 0)])
        classes = cx.Classes(vectors, biases, None, jnp.int32(problems.NUM_CLASSES))
        return jnp.mean(cx.losses.full_softmax(embeddings, jnp.asarray(batch.labels), classes))

    expected = head.vectors[...] - 0.1 * jax.grad(mean_loss)(head.vectors[...], head.biases[...])
    for sampler, loss in ((None, cx.losses.full_softmax), (everything(), cx.losses.css)):
        program = cx.training.build(model, sampler=sampler, loss=loss, optimizer=optax.sgd(0.1))
        state, _ = program.step(program.init(0), batch)
        assert set(state.tables) == {"class_vectors", "class_biases"}
        np.testing.assert_allclose(state.tables["class_vectors"], expected, atol=1e-6)


class Plain(nnx.Module):
    """An encoder without tables."""

    def __init__(self) -> None:
        self.weights = nnx.Param(jnp.eye(16))

    def __call__(self, batch):
        return batch.feature_values @ self.weights[...]


def compiled_step(num_classes, sampler):
    model = cx.models.Classifier(Plain(), cx.models.Head(num_classes, 16, rngs=nnx.Rngs(0)))
    program = cx.training.build(model, sampler=sampler, loss=cx.losses.css, optimizer=optax.adam(1e-3))
    batch = cx.data.Batch(np.zeros((8, 16), np.int32), np.zeros((8, 16), np.float32), np.zeros((8, 2), np.int32))
    state = program.init(0)
    return program.step.lower(state, batch).compile()


@pytest.mark.parametrize("replacement", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(cx.samplers.uniform, marks=pytest.mark.slow),
        lambda n, **kw: cx.samplers.log_uniform(n, ids_ranked=True, **kw),
    ],
    ids=["uniform", "log_uniform"],
)
def test_cost_does_not_grow_with_the_number_of_classes(sampler, replacement):
    steps = {n: compiled_step(n, sampler(64, replacement=replacement)) for n in (10**5, 10**6)}
    small, large = (steps[n].memory_analysis().temp_size_in_bytes for n in (10**5, 10**6))
    assert small == large
    assert large < 10**6
    for n, step in steps.items():
        assert not re.findall(rf"= \w+\[{n}(?:,16)?\]\S* copy", step.as_text())


def test_errors_say_what_does_not_belong_together():
    with pytest.raises(ValueError, match="expected a sampler with every loss but full_softmax"):
        problems.program(None, cx.losses.css)
    with pytest.raises(ValueError, match="takes none"):
        problems.program(cx.samplers.uniform(3), cx.losses.full_softmax)
    with pytest.raises(ValueError, match="a function that makes one"):
        cx.training.build(
            lambda: jnp.zeros(3), sampler=cx.samplers.uniform(4), loss=cx.losses.css, optimizer=optax.sgd(0.1)
        )
    with pytest.raises(ValueError, match="clip_norm > 0"):
        problems.program(None, cx.losses.full_softmax, clip_norm=-1.0)
    with pytest.raises(ValueError, match="not elementwise"):
        problems.program(None, cx.losses.full_softmax, optax.lamb(1e-3))
