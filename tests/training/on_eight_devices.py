"""Class-parallel training on 1 to 8 devices; ``test_class_parallel`` runs this in a process that has them."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from scipy.sparse import csr_array

import candax as cx
from candax import losses, samplers
from candax.blocks import streaming_evaluate
from candax.rows import rowwise
from candax.training.sharded_evaluation import evaluate_sharded, mesh_of
from candax.training.sharded_head import Batch, ShardedHead
from candax.training.shards import Layout, Tables
from candax.training.step import TrainState
from tests.training import problems
from tests.training.test_step import Tied, everything

NUM_SHARDS, ROWS = 8, 8  # 60 classes: the last shard has 4, and 4 rows of padding
TOLERANCE = 1e-6
ARCFACE = losses.with_margin(functools.partial(losses.arcface, margin=0.3, scale=8.0), losses.css)


def normalized_model():
    encoder = cx.models.SparseMLP(problems.NUM_FEATURES, problems.DIM, rngs=nnx.Rngs(0))
    head = cx.models.Head(problems.NUM_CLASSES, problems.DIM, normalized=True, rngs=nnx.Rngs(1))
    return cx.models.Classifier(encoder, head)


def program(devices, sampler, loss, model=problems.model, optimizer=None, num_shards=NUM_SHARDS, **kwargs):
    return cx.training.build_class_parallel(
        model() if model is problems.model else model,
        sampler=sampler,
        loss=loss,
        optimizer=optax.sgd(0.3, momentum=0.9) if optimizer is None else optimizer,
        mesh=cx.training.class_mesh(devices),
        num_shards=num_shards,
        **kwargs,
    )


def run(built, steps=3, state=None):
    state = built.init(0) if state is None else state
    values = []
    start = int(state.step)
    for i in range(start, start + steps):
        if built.schedule(i):
            state = built.refresh(state)
        state, loss = built.step(state, problems.Source()[0, i])
        values.append(float(loss))
    return state, values


def assert_close(got, wanted, tolerance=TOLERANCE):
    """Relative to the largest number of each array."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        far = np.max(np.abs(a - b), initial=0) / max(np.max(np.abs(b), initial=0), 1e-30)
        assert far <= tolerance, f"{jax.tree_util.keystr(path)}: {far}"


def trained(state):
    return jax.device_get((state.tables, state.params, state.table_optimizers))


HASHED = samplers.lsh(
    hash=samplers.simhash(), num_tables=3, num_hashes=2, budget=4, fill="uniform", schedule=lambda step: step == 2
)
CASES = {
    "uniform, css": (samplers.uniform(4), losses.css, {}),
    "arcface, partial_fc": (samplers.partial_fc(6), ARCFACE, {"model": normalized_model}),
    "lsh with updates and a refresh": (HASHED, losses.css, {}),
}
SLOW = {
    "full softmax": (None, losses.full_softmax, {"clip_norm": 0.05}),
    "distinct, clipped": (
        samplers.log_uniform(4, num_groups=2, replacement=False),
        losses.sampled_softmax,
        {"clip_norm": 0.05},
    ),
    "a set an example": (samplers.unigram(4, num_groups=None), losses.nce, {}),
    "arcface over all classes": (None, losses.over_all_classes(ARCFACE), {"model": normalized_model}),
    "learned_unigram": (samplers.learned_unigram(4, memory=16, uniform_share=0.5), losses.css, {}),
    "learned_clusters": (samplers.learned_clusters(4, num_clusters=3), losses.css, {}),
    "knn_label": (samplers.knn_label(2, num_groups=1), losses.subset_softmax, {}),
    "top_k": (samplers.top_k(2), losses.subset_softmax, {}),
    "hashing_forest": (samplers.hashing_forest(2, num_trees=4, leaf_size=4), losses.subset_softmax, {}),
    "in_batch": (samplers.in_batch(), losses.sampled_softmax, {}),
    "bernoulli": (samplers.bernoulli(3.0, num_slots=6), losses.css, {}),
    "with_tail": (
        samplers.with_tail(samplers.uniform(2, replacement=False), samplers.unigram(3, num_groups=1)),
        losses.css,
        {},
    ),
    "d_softmax": (samplers.uniform(4), losses.d_softmax, {"model": normalized_model}),
}


@pytest.mark.parametrize("name", [*CASES, *[pytest.param(name, marks=pytest.mark.slow) for name in SLOW]])
def test_the_number_of_devices_changes_nothing_but_rounding(name):
    sampler, loss, settings = (CASES | SLOW)[name]
    devices = (1, 2, 4, 8) if name in SLOW else (2, 8)
    first = None
    for number in devices:
        state, values = run(program(number, sampler, loss, **settings))
        assert len(state.tables["class_vectors"].sharding.device_set) == number
        if first is None:
            first = trained(state), values, jax.device_get(state.sampler)
            continue
        np.testing.assert_allclose(values, first[1], rtol=TOLERANCE)
        assert_close(trained(state), first[0])
        # Hash tables may differ where a sum rounds across a bit; what is drawn without vectors must not.
        if sampler is not HASHED:
            assert_close(jax.device_get(state.sampler), first[2])


@pytest.mark.parametrize("clip_norm", [pytest.param(None, marks=pytest.mark.slow), 0.05])
def test_all_classes_as_candidates_are_the_ordinary_dense_step(clip_norm):
    """Gradients of class rows, taken wrongly, are too large by the number of devices while the loss is right."""
    optimizer = optax.sgd(0.1)
    ordinary = problems.program(None, losses.full_softmax, optimizer, clip_norm=clip_norm)
    wanted, values = run(ordinary)
    for sampler, loss in ((everything(), losses.css), (None, losses.full_softmax)):
        state, got = run(program(8, sampler, loss, optimizer=optimizer, clip_norm=clip_norm))
        np.testing.assert_allclose(got, values, rtol=TOLERANCE)
        for name, table in wanted.tables.items():
            moved = np.asarray(table) - np.asarray(problems_tables()[name])
            of_parallel = np.asarray(state.tables[name])[: len(moved)] - np.asarray(problems_tables()[name])
            np.testing.assert_allclose(of_parallel, moved, rtol=1e-3, atol=1e-3 * np.abs(moved).max())


@functools.cache
def problems_tables():
    return {name: np.asarray(table[...]) for name, table in cx.models.tables_of(problems.model()).items()}


def test_a_step_is_the_loss_on_the_union_of_what_the_shards_draw():
    """Against single-device code: every shard's sampler by itself, ids shifted, one dense gradient."""
    sampler = samplers.unigram(5, num_groups=2)
    built = program(4, sampler, losses.css, optimizer=optax.sgd(1.0))
    state, batch = built.init(3), problems.Source()[0, 0]
    classes = jax.device_get(built.classes(state))
    embeddings, labels = jnp.asarray(np.asarray(built.embed(state, batch))), jnp.asarray(batch.labels)
    key = jax.random.key(3)
    key_sample, _ = jax.random.split(jax.random.fold_in(key, 0))
    ids, counts, mask, true_count = [], [], [], jnp.zeros(labels.shape)
    for shard in range(NUM_SHARDS):
        rows = slice(shard * ROWS, shard * ROWS + ROWS)
        valid = min(ROWS, problems.NUM_CLASSES - shard * ROWS)
        own = cx.Classes(
            jnp.asarray(classes.vectors[rows]),
            jnp.asarray(classes.biases[rows]),
            jnp.asarray(classes.counts[rows]),
            jnp.int32(valid),
        )
        local = jnp.where((labels >= shard * ROWS) & (labels < shard * ROWS + ROWS), labels - shard * ROWS, -1)
        query = cx.Query(embeddings, local, own)
        sampler_state = sampler.init(jax.random.fold_in(jax.random.fold_in(key, 2**31 - 1), shard), own)
        drawn = sampler.sample(sampler_state, jax.random.fold_in(key_sample, shard), query)
        ids.append(drawn.ids + shard * ROWS)
        counts.append(drawn.log_expected_count)
        mask.append(drawn.mask)
        of_labels = sampler.log_expected_count(sampler_state, drawn, jnp.maximum(local, 0).reshape(2, -1), query)
        true_count += jnp.where(local >= 0, of_labels.reshape(labels.shape), 0)
    candidates = cx.Candidates(*(jnp.concatenate(part, axis=1) for part in (ids, counts, mask)))

    def mean_loss(embeddings, vectors, biases):
        at = jnp.maximum(labels, 0)
        logits = cx.models.score(
            embeddings,
            labels,
            candidates,
            true_count,
            vectors[at],
            biases[at],
            vectors[candidates.ids],
            biases[candidates.ids],
            num_classes=problems.NUM_CLASSES,
        )
        return jnp.mean(losses.css(logits))

    vectors, biases = jnp.asarray(classes.vectors), jnp.asarray(classes.biases)
    wanted, gradients = jax.value_and_grad(mean_loss, (0, 1, 2))(embeddings, vectors, biases)
    state, value = built.step(state, batch)
    assert float(value) == pytest.approx(float(wanted), rel=TOLERANCE)
    assert_close(vectors - np.asarray(state.tables["class_vectors"]), gradients[1], 2e-5)  # a difference of tables
    assert_close(biases - np.asarray(state.tables["class_biases"]), gradients[2], 2e-5)


def poisoned(state: TrainState) -> TrainState:
    """NaN in all rows of padding."""

    def poison(table):
        values = np.array(table)
        values[problems.NUM_CLASSES :] = np.nan
        return jax.device_put(values, table.sharding)

    tables = {name: poison(table) if name.startswith("class_") else table for name, table in state.tables.items()}
    leaves, structure = jax.tree.flatten(state)
    for i, leaf in enumerate(leaves):
        for name, table in state.tables.items():
            leaves[i] = tables[name] if leaf is table else leaves[i]
    return jax.tree.unflatten(structure, leaves)


@pytest.mark.parametrize("name", ["uniform, css", pytest.param("full softmax", marks=pytest.mark.slow)])
def test_padding_is_never_sampled_scored_or_predicted(name):
    sampler, loss, _ = (CASES | SLOW)[name]
    built = program(8, sampler, loss, optimizer=optax.sgd(0.1))
    state, values = run(built, 3, poisoned(built.init(0)))
    clean, wanted = run(program(8, sampler, loss, optimizer=optax.sgd(0.1)), 3)
    np.testing.assert_array_equal(values, wanted)
    for table in ("class_vectors", "class_biases"):
        got = np.asarray(state.tables[table])
        np.testing.assert_array_equal(got[:60], np.asarray(clean.tables[table])[:60])
        assert np.all(np.isnan(got[60:]))
    scores, ids, log_normalizer = evaluate_sharded(
        built.embed(state, problems.Source()[0, 0]),
        built.classes(state),
        mesh=mesh_of(built.classes(state)),
        k=60,
        block_size=4,
    )
    assert np.all(np.sort(ids, axis=1) == np.arange(60))
    assert np.all(np.isfinite(scores))
    assert np.all(np.isfinite(log_normalizer))


def test_prediction_over_shards_is_prediction_over_all():
    rng = np.random.default_rng(0)
    vectors = jnp.asarray(rng.normal(size=(64, 5)), jnp.float32).at[40].set(0.5).at[3].set(0.5)  # equal scores
    biases = jnp.asarray(rng.normal(size=64), jnp.float32).at[40].set(1.0).at[3].set(1.0)
    embeddings = jnp.asarray(rng.normal(size=(7, 5)), jnp.float32)
    labels = csr_array(rng.random((7, 59)) < 0.1)
    for normalized, some_biases in ((False, biases), (True, None)):
        whole = cx.Classes(vectors, some_biases, None, jnp.int32(59), normalized)
        over_rows = Layout(cx.training.class_mesh(8), 8, 59, normalized).over_rows()
        put = jax.device_put((vectors, some_biases), over_rows)
        sharded = cx.Classes(*put, None, jnp.int32(59), normalized)
        got = evaluate_sharded(embeddings, sharded, mesh=mesh_of(sharded), k=12, block_size=16)
        for ours, wanted in zip(got, streaming_evaluate(embeddings, whole, 12), strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-5)
        by_metric = [
            cx.training.evaluate(lambda rows: embeddings, some, [(slice(0, 7), slice(0, 7))], labels, np.ones(59), 7)
            for some in (sharded, whole)
        ]
        assert by_metric[0] == pytest.approx(by_metric[1], rel=1e-5)


@pytest.mark.parametrize(
    "sampler",
    [HASHED, pytest.param(samplers.learned_unigram(4, memory=16, uniform_share=0.5), marks=pytest.mark.slow)],
)
def test_a_checkpoint_of_eight_devices_is_read_on_two(sampler, tmp_path):
    eight, two = (program(number, sampler, losses.css) for number in (8, 2))
    state, _ = run(eight, 3)
    with cx.training.Checkpoints(tmp_path, identity={}) as checkpoints:
        checkpoints.save(state, {})
    saved = jax.device_get(state)
    wanted, values = run(eight, 2, state)
    with cx.training.Checkpoints(tmp_path, identity={}) as checkpoints:
        restored = checkpoints.restore(two.init(0))
    chex.assert_trees_all_equal(jax.device_get(restored), saved)  # the samplers' states included
    assert len(restored.tables["class_vectors"].sharding.device_set) == 2
    state, got = run(two, 2, restored)
    np.testing.assert_allclose(got, values, rtol=TOLERANCE)
    assert_close(trained(state), trained(wanted))


@pytest.mark.parametrize(
    "name", ["uniform, css", pytest.param("lsh with updates and a refresh", marks=pytest.mark.slow)]
)
def test_a_state_keeps_structure_shapes_and_sharding_and_a_second_step_does_not_compile(name):
    sampler, loss, _ = CASES[name]
    traced = []

    def counted(logits):
        traced.append(1)
        return loss(logits)

    built = program(4, sampler, counted)

    def described(state):
        leaves, structure = jax.tree.flatten(state)
        return structure, [(leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves]

    start = described(built.init(0))
    assert described(built.refresh(built.init(0))) == start
    state, _ = built.step(built.init(0), problems.Source()[0, 0])
    assert described(state) == start
    once = len(traced)
    built.step(state, problems.Source()[0, 1])
    assert len(traced) == once > 0


def compiled_step(num_classes, sampler):
    def model():
        encoder = cx.models.SparseMLP(50, 16, rngs=nnx.Rngs(0))
        return cx.models.Classifier(encoder, cx.models.Head(num_classes, 16, rngs=nnx.Rngs(1)))

    built = program(8, sampler, losses.css, model, optax.adam(1e-3))
    batch = cx.data.Batch(np.zeros((16, 4), np.int32), np.zeros((16, 4), np.float32), np.zeros((16, 2), np.int32))
    return built.step.lower(built.init(0), batch).compile()


def test_cost_does_not_grow_with_the_number_of_classes_and_no_table_is_sent():
    steps = {n: compiled_step(n, samplers.uniform(16)) for n in (80_000, 800_000)}
    small, large = (steps[n].memory_analysis().temp_size_in_bytes for n in steps)
    assert small == large < 10**6
    for n, step in steps.items():
        text = step.as_text()
        assert "all-reduce" in text
        assert not re.findall(rf"= \w+\[({n}|{n // 8})(,16)?\]\S* (copy|all-gather|all-reduce|all-to-all)", text)


def test_the_model_survives_and_gets_the_trained_values():
    model = problems.model()
    start = np.array(model.head.vectors[...])
    built = cx.training.build_class_parallel(
        model, sampler=samplers.uniform(4), loss=losses.css, optimizer=optax.sgd(0.1), mesh=cx.training.class_mesh(4)
    )
    state, _ = run(built)
    np.testing.assert_array_equal(model.head.vectors[...], start)
    built.update_model(state)
    np.testing.assert_array_equal(model.head.vectors[...], np.asarray(state.tables["class_vectors"])[:60])
    np.testing.assert_array_equal(model.encoder.bias[...], jax.tree.leaves(state.params)[0])
    run(built, 1, state)


def test_a_function_that_makes_the_model_makes_the_same_one():
    sampler = samplers.uniform(4)
    states = [
        cx.training.build_class_parallel(
            model, sampler=sampler, loss=losses.css, optimizer=optax.sgd(0.1), mesh=cx.training.class_mesh(4)
        ).init(0)
        for model in (problems.model(), problems.model)
    ]
    for a, b in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
        assert a.sharding == b.sharding


def test_bfloat16_rows_are_rounded_alike_whatever_the_number_of_devices():
    """But where a sum of float32 rounds across the border between two results."""

    def model():
        encoder = cx.models.SparseMLP(problems.NUM_FEATURES, problems.DIM, rngs=nnx.Rngs(0))
        head = cx.models.Head(problems.NUM_CLASSES, problems.DIM, dtype=jnp.bfloat16, rngs=nnx.Rngs(1))
        return cx.models.Classifier(encoder, head)

    tables = []
    for devices in (1, 8):
        built = program(devices, samplers.uniform(4), losses.css, model, rounding="stochastic")
        state, values = run(built)
        assert np.all(np.isfinite(values))
        assert state.tables["class_vectors"].dtype == state.tables["class_biases"].dtype == jnp.bfloat16
        assert state.table_optimizers["class_vectors"][0].trace.dtype == jnp.float32
        tables.append(jax.device_get(state.tables))
    for name in ("class_vectors", "class_biases"):
        one, eight = (np.asarray(some[name], np.float32) for some in tables)
        assert np.mean(one != eight) < 0.02
        np.testing.assert_allclose(one, eight, rtol=2e-2, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("sampler", [samplers.uniform(4), samplers.log_uniform(4, replacement=False)])
def test_shards_together_obey_the_one_law(sampler, devices):
    layout = Layout(cx.training.class_mesh(devices), NUM_SHARDS, problems.NUM_CLASSES, False)
    head = ShardedHead(layout, sampler, rowwise(optax.sgd(0.1)))
    tables = Tables(jnp.zeros((64, 2)), None, None)
    batch = Batch(jnp.zeros((2, 2)), jnp.array([[1], [59]]))

    @jax.jit
    def weights(key):
        states = head.build(jax.random.key(0), tables)

        def one(total, key):
            drawn, _ = head.draw(states, key, batch, tables)
            ids = drawn.candidates.ids + jnp.arange(devices)[:, None, None] * layout.rows_each
            weight = jnp.where(drawn.candidates.mask, jnp.exp(-drawn.candidates.log_expected_count), 0)
            of_class = jnp.zeros(64).at[ids.reshape(-1)].add(weight.reshape(-1))
            return (total[0] + of_class, total[1] + of_class**2), None

        return jax.lax.scan(one, (jnp.zeros(64), jnp.zeros(64)), jax.random.split(key, 20_000))[0]

    total, squares = (np.asarray(part, np.float64) / 20_000 for part in weights(jax.random.key(1)))
    stderr = np.sqrt((squares - total**2) / 20_000)
    assert np.all(total[60:] == 0)
    assert np.all(np.abs(total - 1)[:60] < 5 * stderr[:60] + 1e-5)
    assert np.all(5 * stderr < 0.06)


def test_errors_say_what_does_not_fit():
    with pytest.raises(ValueError, match="multiple of the number of devices, got 6 shards for 4"):
        program(4, samplers.uniform(4), losses.css, num_shards=6)
    with pytest.raises(ValueError, match="at least one class a shard"):
        program(4, samplers.uniform(4), losses.css, num_shards=64)
    with pytest.raises(ValueError, match="expected 1 to 8 devices"):
        cx.training.class_mesh(9)
    with pytest.raises(ValueError, match="takes none"):
        program(4, samplers.uniform(4), losses.full_softmax)
    built = program(8, samplers.uniform(4), losses.css)
    with pytest.raises(ValueError, match="multiple of 8 examples"):
        built.step(built.init(0), problems.Source(batch_size=12)[0, 0])
    assert built.embed(built.init(0), problems.Source(batch_size=12)[0, 0]).shape == (12, problems.DIM)
    made = program(2, samplers.uniform(4), losses.css, model=normalized_model)
    state = made.init(0)
    with pytest.raises(ValueError, match="which was a function"):
        made.update_model(state)
    head = cx.models.Head(problems.NUM_CLASSES, 8, rngs=nnx.Rngs(1))
    with pytest.raises(ValueError, match="tables of its own"):
        cx.training.build_class_parallel(
            cx.models.Classifier(Tied(head.vectors), head),
            sampler=samplers.uniform(4),
            loss=losses.css,
            optimizer=optax.sgd(0.1),
        )
