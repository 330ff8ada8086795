"""IVF-BQ as a sampler: sets for each example and for a group, training steps, and their cost."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax import losses, samplers
from tests.samplers.test_ivf_index import NUM_CLASSES, clustered, queries_near
from tests.training import problems


def query_of(classes, number=8):
    labels = np.random.default_rng(3).integers(0, int(classes.num_valid), (number, 2)).astype(np.int32)
    labels[::2, 1] = -1
    return cx.Query(queries_near(classes, number), jnp.asarray(labels), classes)


def test_groups_share_what_is_retrieved_the_labels_and_a_fill():
    classes = clustered(num_valid=2800)
    query = query_of(classes)
    arguments = {"num_centers": 16, "hm_num": 600, "num_kept": 100}
    sampler = samplers.ivf_bq(num_sampled=80, num_groups=2, **arguments)
    alone = samplers.ivf_bq(20, **arguments)  # 80 slots, 2 groups of 4 examples
    state = jax.jit(sampler.init)(jax.random.key(0), classes)
    each = jax.jit(alone.sample)(state, jax.random.key(1), query)
    found = jax.jit(sampler.sample)(state, jax.random.key(1), query)
    assert found.ids.shape == (2, 80)
    for group in range(2):
        ids, labels = set(found.ids[group].tolist()), np.asarray(query.labels)[4 * group : 4 * group + 4]
        assert len(ids) == 80
        assert max(ids) < 2800
        assert set(labels[labels >= 0].tolist()) <= ids
        retrieved = set(np.asarray(each.ids)[4 * group : 4 * group + 4].reshape(-1).tolist())
        assert retrieved <= ids if len(retrieved | set(labels.ravel().tolist())) < 80 else len(retrieved & ids) > 60


def test_schedule_and_updates_are_those_that_were_asked_for():
    sampler = samplers.every(samplers.ivf_bq(5, num_centers=4, hm_num=100, update_every=None), 7)
    assert sampler.update is cx.base.no_update
    assert [step for step in range(20) if sampler.schedule(step)] == [7, 14]


@pytest.mark.parametrize(("codes", "pending_rows"), [("rotated", 30), pytest.param("mean", 7, marks=pytest.mark.slow)])
def test_codes_of_several_steps_made_together_are_those_of_single_steps(codes, pending_rows, tmp_path):
    """Where there is no room for those of another step they are made sooner: every third step, or, with room for 7,
    second. Ids repeat between steps, and their last vectors count.
    """
    classes, rng = clustered(num_valid=100), np.random.default_rng(0)
    classes = dataclasses.replace(classes, vectors=classes.vectors[:120], biases=classes.biases[:120])
    single, together = (
        samplers.ivf_bq(5, num_centers=4, hm_num=60, codes=codes, update_every=n, pending_rows=pending_rows)
        for n in (1, 3)
    )
    states = [jax.jit(sampler.init)(jax.random.key(0), classes) for sampler in (single, together)]
    updates = [jax.jit(sampler.update) for sampler in (single, together)]
    built, made = np.asarray(states[0].codes), []
    query = cx.Query(jnp.zeros((1, classes.vectors.shape[1])), jnp.array([[1]]), classes)
    for _ in range(6):
        ids = np.append(np.sort(rng.choice(100, 3, replace=False)), 103)  # a row of padding is no class
        rows = jnp.asarray(rng.normal(size=(4, classes.vectors.shape[1])), jnp.float32)
        states = [
            update(state, jax.random.key(1), query, jnp.asarray(ids, jnp.int32), rows)
            for update, state in zip(updates, states, strict=True)
        ]
        made.append(bool(np.all(np.asarray(states[0].codes) == np.asarray(states[1].codes))))
        assert made[-1] == (int(states[1].pending.number) == 0)
    assert made == ([False, False, True] if pending_rows == 30 else [False, True, True]) * 2
    assert np.any(np.asarray(states[0].codes) != built)
    states[1] = updates[1](states[1], jax.random.key(1), query, jnp.asarray(ids, jnp.int32), rows)
    index = samplers.ivf_index(num_centers=4, hm_num=60, codes=codes, update_every=3, pending_rows=pending_rows)
    samplers.save_index(tmp_path / "index", index, states[1], classes)
    jax.tree.map(np.testing.assert_array_equal, samplers.load_index(tmp_path / "index")[1], states[1])
    with pytest.raises(ValueError, match="pending_rows of at least 31"):
        updates[1](states[1], jax.random.key(1), query, jnp.arange(31), jnp.zeros((31, rows.shape[1])))


@pytest.mark.parametrize("codes", ["mean", pytest.param("rotated", marks=pytest.mark.slow)])
def test_training_with_updates_and_refresh_keeps_the_index_current(codes):
    sampler = samplers.ivf_bq(
        num_centers=4, hm_num=40, num_kept=20, num_sampled=30, num_groups=4, codes=codes, near="logit"
    )
    training = problems.Training(problems.model(samplers.every(sampler, 3), losses.subset_softmax))
    before = np.array(training.sampler.codes)
    for step in range(3):
        assert np.isfinite(float(training.step(problems.Source()[0, step])))
    assert np.any(np.asarray(training.sampler.codes) != before)
    assert int(training.sampler.updates) == 3
    structure = jax.tree.structure(training.sampler)
    assert cx.refresh(training.model, 3)
    assert jax.tree.structure(training.sampler) == structure
    assert int(training.sampler.updates) == 0
    assert np.isfinite(float(training.step(problems.Source()[0, 3])))


def test_a_normalised_head_is_searched_by_cosine():
    classes = clustered(normalized=True)
    query = query_of(classes)
    query = dataclasses.replace(query, embeddings=cx.cosines.unit(query.embeddings))
    sampler = samplers.ivf_bq(10, num_centers=8, hm_num=NUM_CLASSES, num_kept=300, codes="rotated")
    state = jax.jit(sampler.init)(jax.random.key(0), classes)
    found = jax.jit(sampler.sample)(state, jax.random.key(1), query)
    cosines = np.asarray(query.embeddings @ cx.cosines.unit(classes.vectors).T)
    best = np.argsort(-cosines, axis=1)[:, :10]
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(np.asarray(found.ids), best, strict=True)]) > 0.98
    longer = dataclasses.replace(classes, vectors=classes.vectors.at[5].multiply(100.0))
    moved = sampler.update(state, jax.random.key(0), query, jnp.array([5]), longer.vectors[5:6])
    again = jax.jit(sampler.sample)(moved, jax.random.key(1), dataclasses.replace(query, classes=longer))
    np.testing.assert_array_equal(again.ids, found.ids)


def compiled_step(num_classes, codes="mean", update_every=1):
    """A training step with grouped retrieval, from shapes alone, and its sampler's state."""
    arguments = {"hm_num": 1024, "num_kept": 64, "num_sampled": 100, "num_groups": 2, "pending_rows": 1000}
    sampler = samplers.ivf_bq(num_centers=32, codes=codes, near="logit", update_every=update_every, **arguments)

    def make():
        encoder = cx.models.SparseMLP(problems.NUM_FEATURES, problems.DIM, rngs=nnx.Rngs(0))
        head = cx.Head(num_classes, problems.DIM, sampler=sampler, loss=losses.subset_softmax, rngs=nnx.Rngs(1))
        model = cx.models.Classifier(encoder, head)
        return model, cx.Optimizer(model, optax.sgd(0.1))

    return problems.compiled(make, problems.Source()[0, 0]), nnx.eval_shape(make)[0].head.state.get_value()


@pytest.mark.parametrize(
    ("codes", "update_every"),
    [
        pytest.param("mean", 1, marks=pytest.mark.slow),
        pytest.param("rotated", 1, marks=pytest.mark.slow),
        ("rotated", 4),
    ],
)
def test_one_training_step_needs_no_more_memory_for_more_classes_and_copies_no_table(codes, update_every):
    few, _ = compiled_step(100_000, codes, update_every)
    many, state = compiled_step(1_000_000, codes, update_every)
    assert few.memory_analysis().temp_size_in_bytes == many.memory_analysis().temp_size_in_bytes
    shapes = ["[" + ",".join(map(str, leaf.shape)) + "]" for leaf in jax.tree.leaves(state) if leaf.size > 100_000]
    assert len(shapes) >= 3
    copied = re.findall(r"= (\S+) copy(?:-start)?\(", many.as_text())
    assert not [result for result in copied if any(shape in result for shape in shapes)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": None}, "expected k"),
        ({"k": 0}, "k"),
        ({"num_groups": 2}, "num_sampled"),
        ({"num_sampled": 0}, "num_sampled"),
        ({"update_every": 0}, "update_every"),
        ({"num_kept": 101}, "num_kept"),
    ],
)
def test_wrong_arguments_are_refused(wrong, message):
    with pytest.raises(Exception, match=message):
        samplers.ivf_bq(**({"k": 5, "num_centers": 4, "hm_num": 100} | wrong))
