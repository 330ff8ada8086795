"""Layer 2 on meshes of eight virtual devices."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy.sparse import csr_array

import candax as cx
from tests.training import problems

NUM_SHARDS = 8
NUM, DIM, STEPS = 93, 6, 20  # 93 classes in 8 shards: three rows of padding
MESHES = {"8x1": (8, 1), "4x2": (4, 2), "2x4": (2, 4), "1x8": (1, 8), "4x1 of 8": (4, 1)}
HASHES = {"num_tables": 3, "num_hashes": 2, "budget": 16, "fill": "uniform", "num_groups": 1}
SAMPLERS = {
    "uniform": cx.samplers.uniform(16),
    "log_uniform": cx.samplers.log_uniform(16, replacement=False),
    "unigram": cx.samplers.unigram(16, num_groups=2),
    "bernoulli": cx.samplers.bernoulli(16.0, num_slots=32),
    "in_batch": cx.samplers.in_batch(),
    "partial_fc": cx.samplers.partial_fc(32),
    "lsh": cx.samplers.lsh(hash=cx.samplers.simhash(), **HASHES),
    "lsh_label": cx.samplers.lsh("label", hash=cx.samplers.simhash(), **HASHES),
    "ivf_bq": cx.samplers.ivf_bq(16, num_centers=16, hm_num=64, codes="mean"),
    "ivf_bq, int8": cx.samplers.ivf_bq(16, num_centers=16, hm_num=64, codes="int8"),
    "kernel": cx.samplers.kernel(16, rank=4, leaf_size=4, num_groups=2, schedule=4),
    "midx": cx.samplers.midx(16, num_codewords=4, num_groups=2, schedule=4),
    "grouped": cx.samplers.grouped(cx.samplers.top_k(8), num_sampled=48, num_groups=2),
    "resampled": cx.samplers.resampled(cx.samplers.unigram(64), 16),
    "buckets": cx.samplers.with_tail(cx.samplers.buckets(cx.samplers.exact_index(), 8), cx.samplers.uniform(16)),
    "mixture": cx.samplers.mixture([cx.samplers.in_batch(), cx.samplers.uniform(16)]),
}
OPTIMIZERS = {"sgd": optax.sgd(0.1), "adagrad": optax.adagrad(0.1), "adam": optax.adam(0.01)}


def make_mesh(name):
    shape = MESHES[name]
    number = shape[0] * shape[1]
    return jax.make_mesh(shape, ("classes", "data"), (AxisType.Auto,) * 2, devices=jax.devices()[:number])


class Model(nnx.Module):
    def __init__(self, sampler, mesh, *, tied=True, loss=cx.losses.sampled_softmax, num=NUM, **head):
        rngs = nnx.Rngs(0)
        where = {"mesh": mesh, "num_shards": NUM_SHARDS}
        self.words = cx.Embed(num, DIM, **where, rngs=rngs)
        self.layer = nnx.Linear(DIM, DIM, rngs=rngs)
        of_table = {"table": self.words} if tied else {"dim": DIM, **where}
        counts = np.arange(num, 0, -1, dtype=np.float32)
        self.head = cx.Head(num, sampler=sampler, loss=loss, counts=counts, **of_table, **head, rngs=rngs)

    def __call__(self, tokens):
        return nnx.tanh(self.layer(self.words(tokens)))


def batch(step, mesh, size=8, num=NUM):
    rng = np.random.default_rng(step)
    tokens, labels = rng.integers(0, num, (2, size, 4), dtype=np.int32)
    if mesh is None:
        return tokens, labels
    divides = size % mesh.shape["data"] == 0
    sharding = NamedSharding(mesh, PartitionSpec("data" if divides else None))
    return jax.device_put(tokens, sharding), jax.device_put(labels, sharding)


@functools.partial(nnx.jit, donate_argnums=(0, 1), static_argnums=4)
def train_step(model, optimizer, tokens, labels, tell=False):
    """The loss, and the candidates if it is to ``tell``."""

    def loss_fn(model):
        found = model.head.loss(model(tokens), labels, return_draw=tell)
        return (found[0], found[1].candidates.ids) if tell else (found, None)

    (loss, ids), grads = cx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    return loss, ids


def make(mesh, sampler, optimizer=OPTIMIZERS["adagrad"], tables=None, **options):
    model = Model(sampler, mesh, **options)
    trainer = cx.Optimizer(model, optimizer, tables=tables, clip_norm=1.0)
    if mesh is not None:
        cx.rows.replicate(mesh, model, trainer)
    return model, trainer


def train(mesh, sampler, optimizer=OPTIMIZERS["adagrad"], size=8, drawn=None, **options):
    """A training; the candidates of its steps go into ``drawn``."""
    model, trainer = make(mesh, sampler, optimizer, **options)
    losses = []
    for step in range(STEPS):
        cx.refresh(model, step)
        loss, ids = train_step(model, trainer, *batch(step, mesh, size), drawn is not None)
        losses.append(float(loss))
        if drawn is not None:
            drawn.append(np.asarray(ids))
    return model, trainer, losses


def weights(model):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.to_pure_dict(nnx.state(model, nnx.Param)))]


def test_exact_optimizers_on_two_axes():
    options = {"tables": cx.rows.exact_adamw(0.01, weight_decay=0.1)}
    runs = [train(mesh, SAMPLERS["uniform"], **options) for mesh in (make_mesh("4x2"), None)]
    for model, _, _ in runs:
        cx.rows.settle(model)
    assert_same(*runs)


def assert_same(got, wanted):
    np.testing.assert_allclose(got[2], wanted[2], rtol=1e-5)
    for one, other in zip(weights(got[0]), weights(wanted[0]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


QUICK = ("uniform", "lsh", "ivf_bq", "grouped")


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


def same_on(meshes, sampler, **options):
    """What is found by class vectors may differ where two are equally near but for rounding."""
    alone = train(None, sampler, drawn=(wanted := []), **options)
    for mesh in meshes:
        assert_same(train(make_mesh(mesh), sampler, drawn=(drawn := []), **options), alone)
        assert sum(map(np.array_equal, drawn, wanted)) >= 19 * STEPS // 20, mesh


@pytest.mark.parametrize("name", QUICK)
def test_training_is_the_same_on_meshes(name):
    same_on(MESHES if name in ("uniform", "lsh") else ("2x4",), SAMPLERS[name])


@pytest.mark.slow
@pytest.mark.parametrize(("tied", "optimizer"), [(True, "adagrad"), (True, "sgd"), (False, "adam")])
@pytest.mark.parametrize("name", SAMPLERS)
def test_training_is_the_same_on_every_mesh(name, tied, optimizer):
    same_on(MESHES, SAMPLERS[name], tied=tied, optimizer=OPTIMIZERS[optimizer])
    jax.clear_caches()  # together they are more programs than Linux has mappings for in one process


@pytest.mark.parametrize("optimizer", [slow("sgd"), "adam"])
@pytest.mark.parametrize("tied", [True, False])
def test_optimizers_and_tables_of_both_kinds_on_two_axes(optimizer, tied):
    options = {"optimizer": OPTIMIZERS[optimizer], "tied": tied}
    sampler = SAMPLERS["log_uniform"]
    assert_same(train(make_mesh("4x2"), sampler, **options), train(None, sampler, **options))


@pytest.mark.parametrize("loss", [cx.losses.css, slow(cx.losses.nce), slow(cx.losses.ranking)])
def test_losses_on_two_axes(loss):
    sampler = SAMPLERS["uniform"]
    assert_same(train(make_mesh("4x2"), sampler, loss=loss), train(None, sampler, loss=loss))


def test_margins_of_normalised_heads_and_the_full_softmax():
    margin = cx.losses.with_margin(functools.partial(cx.losses.arcface, margin=0.2, scale=8.0), cx.losses.css)
    options = {"loss": margin, "normalized": True, "tied": False}
    sampler = SAMPLERS["partial_fc"]
    assert_same(train(make_mesh("4x2"), sampler, **options), train(None, sampler, **options))
    options = {"loss": cx.losses.full_softmax}
    assert_same(train(make_mesh("4x2"), None, **options), train(None, None, **options))


def test_a_batch_that_the_devices_do_not_divide():
    sampler = SAMPLERS["uniform"]
    assert_same(train(make_mesh("2x4"), sampler, size=7), train(None, sampler, size=7))


def test_gradients_are_those_of_a_dense_copy_on_one_device():
    """Taken wrongly, gradients are too large by the number of devices while the loss is right."""
    of_rows = nnx.jit(cx.value_and_grad(lambda model, tokens, labels: model.head.loss(model(tokens), labels)))
    dense = nnx.jit(nnx.value_and_grad(lambda model, tokens, labels: model.head.loss(model(tokens), labels)))
    alone, _ = make(None, SAMPLERS["uniform"])
    wanted_loss, wanted = dense(alone, *batch(0, None))
    for name in MESHES:
        mesh = make_mesh(name)
        model, _ = make(mesh, SAMPLERS["uniform"])
        loss, grads = of_rows(model, *batch(0, mesh))
        np.testing.assert_allclose(loss, wanted_loss, rtol=1e-6)
        for table, entry in grads.rows.items():
            ids, rows = np.asarray(entry.ids), np.asarray(entry.rows)
            scattered = np.zeros((entry.num_rows, *rows.shape[1:]), np.float32)
            scattered[ids[ids < entry.num_rows]] = rows[ids < entry.num_rows]
            of_head = {"head.vectors": wanted["head"].get("vectors"), "head.biases": wanted["head"]["biases"]}
            expected = of_head[table] if of_head[table] is not None else wanted["words"]["embedding"]
            np.testing.assert_allclose(scattered, expected[...], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            grads.params["layer"]["kernel"][...], wanted["layer"]["kernel"][...], rtol=1e-5, atol=1e-6
        )


def test_rows_stay_where_they_are_and_steps_are_compiled_once():
    mesh = make_mesh("4x2")
    model, trainer = make(mesh, SAMPLERS["lsh"], OPTIMIZERS["adam"])
    traced = []

    @functools.partial(nnx.jit, donate_argnums=(0, 1))
    def step(model, trainer, tokens, labels):
        traced.append(None)
        loss, grads = cx.value_and_grad(lambda model: model.head.loss(model(tokens), labels))(model)
        trainer.update(model, grads)
        return loss

    def places():
        state = nnx.state((model, trainer))
        return [leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(state)]

    before = places()
    assert model.words.embedding[...].sharding.shard_shape((96, DIM)) == (24, DIM)
    for number in range(3):
        step(model, trainer, *batch(number, mesh))
        assert places() == before
    assert len(traced) == 1
    assert step.jitted_fn._cache_size() == 1


def test_cost_does_not_grow_with_the_number_of_classes_and_no_table_is_sent():
    sizes = {}
    for num in (80_000, 800_000):
        mesh = make_mesh("4x2")
        model, trainer = make(mesh, cx.samplers.uniform(64), OPTIMIZERS["adam"], num=num)
        compiled = train_step.lower(model, trainer, *batch(0, mesh)).compile().compiled
        sizes[num] = compiled.memory_analysis().temp_size_in_bytes
        text = compiled.as_text()
        moved = re.findall(r"= (\S+) (?:copy|all-gather|all-reduce|all-to-all|collective-permute)\(", text)
        assert moved
        assert not [shape for shape in moved if str(num) in shape or str(num // 4) in shape]
    assert sizes[80_000] == sizes[800_000] < 10**6


def test_a_checkpoint_of_eight_devices_is_read_on_others(tmp_path):
    import orbax.checkpoint as ocp

    # Steps tell their candidates, as those that are compiled already for this sampler do.
    straight = train(make_mesh("4x2"), SAMPLERS["lsh"], drawn=[])
    model, trainer = make(make_mesh("8x1"), SAMPLERS["lsh"])
    for step in range(STEPS):
        if step in (7, 13):
            mesh = make_mesh("4x1 of 8" if step == 7 else "1x8")
            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.save(tmp_path / f"at {step}", nnx.state((model, trainer)))
            model, trainer = make(mesh, SAMPLERS["lsh"])
            with ocp.StandardCheckpointer() as checkpointer:
                nnx.update((model, trainer), checkpointer.restore(tmp_path / f"at {step}", nnx.state((model, trainer))))
        else:
            mesh = make_mesh("8x1" if step < 7 else "4x1 of 8" if step < 13 else "1x8")
        train_step(model, trainer, *batch(step, mesh), True)
    for one, other in zip(weights(model), weights(straight[0]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_predictions_over_sharded_rows():
    mesh = make_mesh("4x2")
    (model, _), (alone, _) = make(mesh, SAMPLERS["uniform"]), make(None, SAMPLERS["uniform"])
    h = np.random.default_rng(0).normal(size=(5, DIM)).astype(np.float32)
    labels = np.array([0, 5, 92, 17, -1], np.int32)

    seen = np.tile(np.array([3, 92, -1], np.int32), (5, 1))

    @nnx.jit
    def predict(model):
        head = model.head
        return head(h), head.top_k(h, 7), head.top_k(h, 90, exclude=seen), head.log_prob(h, labels)

    for one, other in zip(*map(jax.tree.leaves, (predict(model), predict(alone))), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    truth = csr_array(np.eye(5, NUM))
    measured = [
        cx.training.evaluate(lambda _: jnp.asarray(h), one.head.classes(), [((), slice(0, 5))], truth, np.ones(NUM), 5)
        for one in (model, alone)
    ]
    assert measured[0] == pytest.approx(measured[1], rel=1e-5)


class Source:
    """Tokens and labels by position."""

    def __init__(self, size=8):
        self.batches_per_epoch, self.identity, self.size = 5, {}, size

    def __getitem__(self, position):
        return batch(5 * position[0] + position[1], None, self.size)


@pytest.mark.parametrize("size", [8, 7])
def test_a_run_of_fit_goes_on_with_eight_three_and_one_device(size, tmp_path):
    """As many shards as all these numbers divide; batches of 7 are divided by none of them."""

    def run(number, steps, folder):
        auto = (AxisType.Auto,)
        mesh = jax.make_mesh((number,), ("classes",), auto, devices=jax.devices()[:number])
        rngs, where = nnx.Rngs(0), {"mesh": mesh, "num_shards": 24}
        model = nnx.Dict(words=cx.Embed(NUM, DIM, **where, rngs=rngs))
        model.head = cx.Head(NUM, table=model.words, sampler=cx.samplers.uniform(48), rngs=rngs)
        optimizer = cx.Optimizer(model, OPTIMIZERS["adam"], clip_norm=1.0)
        loss_fn = lambda model, batch: model.head.loss(model.words(batch[0]), batch[1])  # noqa: E731
        options = {"num_steps": steps, "loss_fn": loss_fn, "folder": folder, "progress": False}
        return cx.training.fit(model, optimizer, Source(size), **options)

    whole = run(8, 12, None)
    for number, steps in ((8, 4), (3, 8), (1, 12)):
        found = run(number, steps, tmp_path)
        assert len(found.model.words.embedding[...].sharding.device_set) == number
    np.testing.assert_allclose(found.model.words.embedding[...], whole.model.words.embedding[...], atol=1e-5)


@pytest.mark.parametrize("in_jit", [False, True])
def test_a_classifier_on_a_mesh_trains_as_on_one_device(in_jit):
    """Made as it is, and made in ``nnx.jit``, where no device ever holds a whole table."""
    results = []
    for mesh in (make_mesh("8x1"), None):

        def make(mesh=mesh):
            sampler = cx.samplers.unigram(16)
            model = problems.model(sampler, cx.losses.css, mesh=mesh, num_shards=NUM_SHARDS)
            cx.rows.shard(model.encoder, mesh, num_shards=NUM_SHARDS)
            return model, cx.Optimizer(model, optax.sgd(0.3, momentum=0.9))

        model, optimizer = (nnx.jit(make) if in_jit else make)()
        if mesh is not None:
            cx.rows.replicate(mesh, model, optimizer)
        tables = problems.tables(model)
        shards = {name: table.sharding for name, table in tables.items()}
        losses = [problems.train_step(model, optimizer, problems.Source()[0, step]) for step in range(3)]
        tables = problems.tables(model)
        assert {name: table.sharding for name, table in tables.items()} == shards
        results.append([np.asarray(table)[:40] for table in tables.values()] + losses)
        if mesh is not None:
            assert all(len(where.device_set) == 8 and not where.is_fully_replicated for where in shards.values())
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_errors_say_what_does_not_fit():
    mesh = make_mesh("4x2")
    with pytest.raises(ValueError, match=r"expected a mesh with an axis 'rows'.*\('classes', 'data'\)"):
        cx.Head(NUM, DIM, sampler=SAMPLERS["uniform"], mesh=mesh, axis="rows", rngs=nnx.Rngs(0))
    explicit = jax.make_mesh((4, 2), ("classes", "data"), (AxisType.Explicit,) * 2)
    with pytest.raises(ValueError, match="axes are of the type Auto"):
        cx.Embed(NUM, DIM, mesh=explicit, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="at least one class per shard, got 3 classes for 4 shards"):
        cx.Embed(3, DIM, mesh=mesh, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="multiple of the 4 devices of the axis 'classes', got 6"):
        cx.Embed(NUM, DIM, mesh=mesh, num_shards=6, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="num_sampled that 4 shards divide"):
        cx.Head(NUM, DIM, sampler=cx.samplers.uniform(6), mesh=mesh, rngs=nnx.Rngs(0))
    words = cx.Embed(NUM, DIM, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="the table that is shared"):
        cx.Head(NUM, table=words, sampler=SAMPLERS["uniform"], mesh=mesh, rngs=nnx.Rngs(0))


def test_a_batch_over_explicit_axes_says_which_to_make():
    explicit = jax.make_mesh((2,), ("data",), (AxisType.Explicit,), devices=jax.devices()[:2])
    ids = jax.device_put(jnp.arange(4), NamedSharding(explicit, PartitionSpec("data")))
    head = cx.Head(NUM, DIM, sampler=cx.samplers.uniform(8), rngs=nnx.Rngs(0))
    for use in (cx.Embed(NUM, DIM, rngs=nnx.Rngs(0)), lambda ids: head.loss(jnp.ones((4, DIM)), ids)):
        with pytest.raises(ValueError, match="axes of the type Auto"):
            use(ids)
        with jax.set_mesh(explicit), pytest.raises(ValueError, match="axes of the type Auto"):
            nnx.jit(use)(ids)
