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
    "uniform, a set per example": cx.samplers.uniform(12, num_groups=None),
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


def run(training, steps, batches=None):
    batches = problems.Source() if batches is None else batches
    return [float(training.step(batches[0, step])) for step in range(steps)]


def assert_models_close(one, other):
    params = [nnx.to_pure_dict(nnx.state(training.model, nnx.Param)) for training in (one, other)]
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
    sparse = problems.Training(problems.model(everything(), loss), optimizer, clip_norm=clip_norm)
    dense = problems.Training(problems.model(), optimizer, clip_norm=clip_norm)
    np.testing.assert_allclose(run(sparse, 5), run(dense, 5), rtol=1e-5)
    assert_models_close(sparse, dense)


def test_a_step_is_the_ordinary_dense_step():
    """Against the textbook: one gradient of everything, tables dense, by jax.grad and optax."""
    training, batch = problems.Training(problems.model(), optax.sgd(0.1)), problems.Source()[0, 0]
    loss = training.step(batch)
    graph, variables, rest = nnx.split(problems.model(), nnx.Param, ...)

    def mean_loss(variables):
        model = nnx.merge(graph, variables, rest)
        return jnp.mean(cx.losses.full_softmax(model(batch), jnp.asarray(batch.labels), model.head.classes()))

    expected, grads = jax.value_and_grad(mean_loss)(variables)
    trained = jax.tree.map(lambda value, grad: value - 0.1 * grad, variables, grads)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    chex.assert_trees_all_close(
        nnx.to_pure_dict(nnx.state(training.model, nnx.Param)), nnx.to_pure_dict(trained), atol=1e-6
    )


@pytest.mark.parametrize("name", some_of(SAMPLERS))
def test_rows_that_a_step_does_not_use_stay_bit_identical(name):
    traced = []

    def css(logits):
        traced.append(name)
        return cx.losses.css(logits)

    training, batches = problems.Training(problems.model(SAMPLERS[name], css)), problems.Source(batch_size=4)
    start = jax.tree.map(np.array, training.tables)
    training.step(batches[0, 0])
    after = training.tables
    changed = {name: np.any(np.reshape(after[name] != start[name], (len(start[name]), -1)), 1) for name in start}
    used = np.unique(batches[0, 0].feature_ids)
    assert set(np.flatnonzero(changed["encoder.bag"])) <= set(used[used >= 0])
    labels = np.unique(batches[0, 0].labels)
    assert set(labels[labels >= 0]) <= set(np.flatnonzero(changed["head.biases"]))
    assert 0 < changed["head.vectors"].sum() < problems.NUM_CLASSES
    of_one_step = len(traced)
    training.step(batches[0, 1])
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
    training = problems.Training(problems.model(SAMPLERS[name], loss), optax.adam(3e-2))
    run(training, 200, problems.Source(batch_size=64, num_labels=1, batches_per_epoch=200))
    unseen = problems.Source(batch_size=512, num_labels=1)[1, 0]
    logits = training.model.head(cx.training.embed(training.model, unseen))
    # The label is one of the five features, and the input does not say which: any is a good answer, chance is .08.
    best = np.argmax(logits, axis=1)
    assert np.mean(np.any(best[:, None] == unseen.feature_ids, axis=1)) > 0.4


def test_a_model_made_in_jit_holds_its_table_once():
    num_classes, dim = 1 << 21, 64

    def make():
        head = cx.Head(num_classes, dim, sampler=cx.samplers.uniform(10), rngs=nnx.Rngs(0))
        model = cx.models.Classifier(cx.models.SparseMLP(40, dim, rngs=nnx.Rngs(1)), head)
        return nnx.state((model, cx.Optimizer(model, optax.sgd(0.1))))

    memory = jax.jit(make).lower().compile().memory_analysis()
    table = 4 * num_classes * dim
    assert memory.output_size_in_bytes + memory.temp_size_in_bytes < 1.4 * table


def test_same_seed_same_result():
    once, again = (problems.Training(problems.model(SAMPLERS["uniform"])) for _ in range(2))
    assert run(once, 4) == run(again, 4)
    chex.assert_trees_all_equal(once.tables, again.tables)


class Tied(nnx.Module):
    """Words in, words out, one table for both."""

    def __init__(self, words: cx.rows.Table) -> None:
        self.words = words

    def __call__(self, batch):
        return jnp.einsum("bf,bfd->bd", batch.feature_values, cx.rows.lookup(self.words, batch.feature_ids))


def test_a_tied_table_is_trained_from_both_of_its_uses():
    batch = problems.Source()[0, 0]

    def model(**options):
        head = cx.Head(problems.NUM_CLASSES, 8, rngs=nnx.Rngs(1), **options)
        return cx.models.Classifier(Tied(head.vectors), head)

    def mean_loss(vectors, biases):
        embeddings = jnp.einsum("bf,bfd->bd", batch.feature_values, vectors[jnp.maximum(batch.feature_ids, 0)])
        return jnp.mean(cx.losses.full_softmax(embeddings, jnp.asarray(batch.labels), cx.Classes(vectors, biases)))

    vectors, biases = model().head.vectors[...], model().head.biases[...]
    expected = vectors - 0.1 * jax.grad(mean_loss)(vectors, biases)
    for options in ({}, {"sampler": everything(), "loss": cx.losses.css}):
        training = problems.Training(model(**options), optax.sgd(0.1))
        training.step(batch)
        assert len(training.tables) == 2  # one for both uses, and the biases
        np.testing.assert_allclose(training.model.head.vectors[...], expected, atol=1e-6)


class Plain(nnx.Module):
    """An encoder without tables."""

    def __init__(self) -> None:
        self.weights = nnx.Param(jnp.eye(16))

    def __call__(self, batch):
        return batch.feature_values @ self.weights[...]


def compiled_step(num_classes, sampler):
    def make():
        head = cx.Head(num_classes, 16, sampler=sampler, loss=cx.losses.css, rngs=nnx.Rngs(0))
        model = cx.models.Classifier(Plain(), head)
        return model, cx.Optimizer(model, optax.adam(1e-3))

    batch = cx.data.Batch(np.zeros((8, 16), np.int32), np.zeros((8, 16), np.float32), np.zeros((8, 2), np.int32))
    return problems.compiled(make, batch)


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
        problems.model(None, cx.losses.css)
    with pytest.raises(ValueError, match="takes none"):
        problems.model(cx.samplers.uniform(3), cx.losses.full_softmax)
    with pytest.raises(ValueError, match="clip_norm > 0"):
        problems.Training(problems.model(), clip_norm=-1.0)
    with pytest.raises(ValueError, match="not elementwise"):
        problems.Training(problems.model(), optax.lamb(1e-3))
