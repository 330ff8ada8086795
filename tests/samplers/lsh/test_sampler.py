"""LSH samplers as such: what they find, budgets, fill, the unbiased estimator, updates, schedules, training."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import candax as cx
from candax import losses, samplers
from candax.samplers.common import pending
from candax.samplers.common.found import EMPTY, distinct, distinct_below, is_found, thin, thin_and_fill
from candax.testing import statistics
from candax.testing.problems import make_classes, make_query
from tests.training import problems

DIM, NUM_CLASSES = 8, 200


def clustered(seed=0):
    """20 clusters of 10 classes each, class c in cluster c // 10."""
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(NUM_CLASSES // 10, DIM)), 10, axis=0)
    vectors = jnp.asarray(centres + 0.05 * rng.normal(size=centres.shape), jnp.float32)
    return cx.Classes(vectors, None, None, jnp.int32(NUM_CLASSES))


def query_near(classes, wanted, labels=None):
    labels = jnp.asarray(wanted if labels is None else labels, jnp.int32).reshape(len(wanted), -1)
    return cx.Query(classes.vectors[jnp.array(wanted)], labels, classes)


def drawn(sampler, query, seed=0):
    state = sampler.init(jax.random.key(seed), query.classes)
    candidates = jax.jit(sampler.sample)(state, jax.random.key(seed + 1), query)
    return candidates, [set(ids[mask].tolist()) for ids, mask in zip(candidates.ids, candidates.mask, strict=True)]


HASHES = {"simhash": (samplers.simhash(), 10), "dwta": (samplers.dwta(4), 5)}
lsh = {
    name: functools.partial(samplers.lsh, hash=h, num_tables=8, num_hashes=k, num_buckets=1024)
    for name, (h, k) in HASHES.items()
}


@pytest.mark.parametrize("query", ["embedding", "label"])
@pytest.mark.parametrize("name", HASHES)
def test_near_classes_are_found_and_far_ones_are_not(name, query):
    classes = clustered()
    batch = query_near(classes, [3, 47, 111])
    candidates, found = drawn(lsh[name](query), batch)
    assert candidates.ids.shape == (3, NUM_CLASSES)
    for wanted, ids in zip([3, 47, 111], found, strict=True):
        assert wanted in ids, "a vector always finds itself"
        assert len(ids & set(range(wanted // 10 * 10, wanted // 10 * 10 + 10))) >= 6
        assert len(ids) < NUM_CLASSES // 2


def test_label_mode_looks_near_the_labels_not_near_the_embedding():
    classes = clustered()
    batch = query_near(classes, [3, 3], labels=[[47, 111], [47, -1]])
    _, found = drawn(lsh["simhash"]("label"), batch)
    assert {47, 111} <= found[0]
    assert 47 in found[1]
    assert 111 not in found[1]
    _, shared = drawn(lsh["simhash"]("label", num_groups=1), batch)
    assert shared[0] == found[0] | found[1]


def test_groups_are_the_union_of_their_examples():
    classes = clustered()
    batch = query_near(classes, [3, 47, 111, 150])
    each, pairs = drawn(lsh["simhash"](), batch)[1], drawn(lsh["simhash"](num_groups=2), batch)[1]
    assert pairs == [each[0] | each[1], each[2] | each[3]]


@pytest.mark.parametrize("take", ["tables", "all"])
@pytest.mark.parametrize("num_groups", [1, None])
def test_a_budget_is_kept_and_spent_on_what_was_found(take, num_groups):
    classes = clustered()
    batch = query_near(classes, [3, 47])
    everything = drawn(lsh["simhash"](num_groups=num_groups), batch)[1]
    candidates, found = drawn(lsh["simhash"](budget=7, take=take, num_groups=num_groups), batch)
    assert candidates.ids.shape[1] == 7
    for some, every in zip(found, everything, strict=True):
        assert some <= every
        assert len(some) == 7 if take == "all" else len(some) >= 3


def test_the_stated_counts_are_near_the_truth_where_they_are_approximate():
    """Capacity, budget and tables in order: within 15 % on average for classes that are found often."""
    classes, draws = make_classes(), 4000
    query = make_query(jax.random.key(1), classes)
    sampler = samplers.lsh(hash=samplers.simhash(), num_tables=6, num_hashes=2, budget=8, capacity=4)
    assert not sampler.facts.exact

    def once(key):
        key_init, key_sample = jax.random.split(key)
        candidates = sampler.sample(sampler.init(key_init, classes), key_sample, query)
        hit = (candidates.ids[..., None] == jnp.arange(24)) & candidates.mask[..., None]
        weights = jnp.where(candidates.mask, jnp.exp(-candidates.log_expected_count), 0.0)
        return jnp.any(hit, axis=1), jnp.sum(jnp.where(hit, weights[..., None], 0.0), axis=1)

    rate, weight = jax.jit(lambda keys: jax.tree.map(lambda x: x.mean(axis=0), jax.vmap(once)(keys)))(
        jax.random.split(jax.random.key(2), draws)
    )
    often = np.asarray(rate) > 0.2
    assert often.sum() > 20
    np.testing.assert_allclose(np.asarray(weight)[often].mean(), 1.0, atol=0.15)


def test_css_over_rebuilt_indexes_estimates_the_normaliser_without_bias(monkeypatch):
    """The adaptive estimator of Spring and Shrivastava: exp(css + true logit) has mean Z over indexes."""
    monkeypatch.setattr(statistics, "CHUNK", 1 << 12)
    classes = make_classes(num_valid=12, num_classes=14)
    query = make_query(jax.random.key(1), classes)
    query = dataclasses.replace(query, labels=query.labels[:, :1])
    sampler = samplers.lsh(hash=samplers.simhash(), num_tables=4, num_hashes=2, capacity=None)
    logits = query.embeddings @ jnp.nan_to_num(classes.vectors).T + jnp.nan_to_num(classes.biases)
    logits = jnp.where(jnp.arange(14) < 12, logits, -jnp.inf)
    normaliser = np.exp(np.asarray(jax.nn.logsumexp(logits, axis=1)))
    true = jnp.take_along_axis(logits, query.labels, axis=1)

    def estimate(factor, key):
        key_init, key_sample = jax.random.split(key)
        state = sampler.init(key_init, classes)
        candidates = sampler.sample(state, key_sample, query)
        sampled = jnp.take_along_axis(logits, candidates.ids, axis=1)
        seen = cx.SampledLogits(
            true,
            sampler.log_expected_count(state, candidates, query.labels, query),
            jnp.ones(true.shape, bool),
            sampled,
            candidates.log_expected_count + np.log(factor),
            candidates.mask,
            candidates.ids == query.labels,
            num_classes=12,
        )
        return jnp.exp(losses.css(seen) + true[:, 0]) / normaliser

    ones = np.ones(len(normaliser))
    statistics.check_mean(functools.partial(estimate, 1.0), ones, delta=0.05, seed=3)
    with pytest.raises(AssertionError, match="biased"):
        statistics.check_mean(functools.partial(estimate, 1.15), ones, delta=0.05, seed=3)


@pytest.mark.slow
def test_rows_that_change_are_found_at_their_new_place():
    classes = clustered()
    sampler = lsh["dwta"]()
    state = sampler.init(jax.random.key(0), classes)
    row_ids = jnp.array([5, 120, NUM_CLASSES, NUM_CLASSES + 1])
    rows = jnp.concatenate([classes.vectors[jnp.array([120, 5])], jnp.ones((2, DIM))])
    moved = dataclasses.replace(classes, vectors=classes.vectors.at[row_ids].set(rows, mode="drop"))
    batch = query_near(moved, [5, 120])
    updated = sampler.update(state, jax.random.key(1), batch, row_ids, rows)
    for now, says in ((state, False), (updated, True)):
        candidates = sampler.sample(now, jax.random.key(2), batch)
        for example, wanted in enumerate([5, 120]):
            assert (wanted in candidates.ids[example][candidates.mask[example]].tolist()) == says


def in_buckets(tables):
    """The set in each bucket."""
    return [{c for c in bucket.tolist() if c != EMPTY} for table in np.asarray(tables.buckets) for bucket in table]


@pytest.mark.parametrize("pending_rows", [30, 7])
def test_rows_of_several_steps_that_move_together_end_where_single_steps_put_them(pending_rows):
    """Where there is no room for those of another step they move sooner: every third step, or, with room for 7, second.

    Ids repeat between steps, and their last vectors count.
    """
    classes, rng = clustered(), np.random.default_rng(0)
    single, together = (
        lsh["simhash"](capacity=None, num_buckets=64, update_every=n, pending_rows=pending_rows) for n in (1, 3)
    )
    states = [sampler.init(jax.random.key(0), classes) for sampler in (single, together)]
    updates = [jax.jit(sampler.update) for sampler in (single, together)]
    built, moved = in_buckets(states[0].tables), []
    for _ in range(6):
        ids = np.append(np.sort(rng.choice(NUM_CLASSES, 3, replace=False)), NUM_CLASSES)  # and a filler
        args = (query_near(classes, [1]), jnp.asarray(ids), jnp.asarray(rng.normal(size=(4, DIM)), jnp.float32))
        states = [update(state, jax.random.key(1), *args) for update, state in zip(updates, states, strict=True)]
        equal = in_buckets(states[0].tables) == in_buckets(states[1].tables)
        assert equal == (int(states[1].pending.number) == 0)
        moved.append(equal)
    assert moved == ([False, False, True] if pending_rows == 30 else [False, True, True]) * 2
    assert in_buckets(states[0].tables) != built
    assert lsh["simhash"](update_every=None).update is cx.base.no_update


def test_rows_that_move_in_parts_enter_a_reservoir_with_equal_chances(monkeypatch):
    """All classes come into one bucket with room for one of them; parts that drew alike would keep the first."""
    monkeypatch.setattr(pending, "_CHUNK", 4)
    sizes = {"num_tables": 1, "num_hashes": 1, "capacity": 1, "update_every": 2, "pending_rows": 16}
    sampler = samplers.lsh(hash=samplers.simhash(), eviction="reservoir", **sizes)
    classes = cx.Classes(jnp.ones((8, 2)))
    state, query = sampler.init(jax.random.key(0), classes), query_near(classes, [1])
    state = sampler.update(state, jax.random.key(1), query, jnp.arange(8), -classes.vectors)
    assert int(state.pending.number) == 8

    @jax.jit
    @jax.vmap
    def kept(key):
        moved = sampler.update(state, key, query, jnp.arange(8, 16), classes.vectors).tables
        return moved.buckets[0, moved.codes[0, 0], 0]

    rate = np.bincount(np.asarray(kept(jax.random.split(jax.random.key(2), 4000))), minlength=8) / 4000
    np.testing.assert_allclose(rate, 1 / 8, atol=0.026)  # five standard errors


def test_too_little_room_for_the_rows_of_a_step_is_said():
    sampler, classes = lsh["simhash"](update_every=2, pending_rows=3), clustered()
    state = sampler.init(jax.random.key(0), classes)
    with pytest.raises(ValueError, match="pending_rows of at least 4"):
        sampler.update(state, jax.random.key(1), query_near(classes, [1]), jnp.arange(4), classes.vectors[:4])


def test_padding_rows_never_enter_the_tables():
    classes = dataclasses.replace(clustered(), num_valid=jnp.int32(150))
    sampler = lsh["simhash"](fill="uniform", budget=180)
    state = sampler.init(jax.random.key(0), classes)
    row_ids = jnp.array([140, 160])
    state = sampler.update(state, jax.random.key(1), query_near(classes, [1]), row_ids, classes.vectors[row_ids])
    held = np.asarray(state.tables.buckets)
    assert held[held != EMPTY].max() < 150
    candidates = sampler.sample(state, jax.random.key(2), query_near(classes, [1, 140]))
    assert int(candidates.mask.sum(axis=1).min()) == 150
    assert int(jnp.where(candidates.mask, candidates.ids, 0).max()) < 150


def test_search_is_the_exact_top_k_of_what_the_buckets_hold():
    classes = dataclasses.replace(clustered(), biases=jnp.linspace(-1, 1, NUM_CLASSES))
    batch = query_near(classes, [3, 47, 111])
    _, found = drawn(lsh["simhash"](), batch)
    sampler = samplers.lsh_top_k(5, hash=samplers.simhash(), num_tables=8, num_hashes=10, num_buckets=1024)
    candidates, best = drawn(sampler, batch)
    logits = np.asarray(batch.embeddings @ classes.vectors.T + classes.biases)
    for example, ids in enumerate(found):
        wanted = sorted(ids, key=lambda c: -logits[example, c])[:5]
        assert best[example] == set(wanted)
    exact = samplers.top_k(5)
    true, _ = drawn(exact, batch)
    recall = np.mean([len(best[i] & set(true.ids[i].tolist())) / 5 for i in range(3)])
    assert recall > 0.5
    state = sampler.init(jax.random.key(0), classes)
    counts = sampler.log_expected_count(state, candidates, jnp.concatenate([candidates.ids, batch.labels], 1), batch)
    np.testing.assert_array_equal(np.asarray(counts)[:, -1], 0.0)


def test_distinct_numbers_are_equally_likely():
    draws, bound = 20_000, jnp.array([10, 3, 0, 1])
    numbers, mask = jax.vmap(lambda key: distinct_below(key, bound, jnp.array([4, 4, 4, 1]), 4))(
        jax.random.split(jax.random.key(0), draws)
    )
    numbers, mask = np.asarray(numbers), np.asarray(mask)
    assert np.all(mask[:, 0])
    assert all(len(set(row)) == 4 for row in numbers[:500, 0])
    rate = np.bincount(numbers[:, 0].ravel(), minlength=10) / draws
    np.testing.assert_allclose(rate, 0.4, atol=5 * np.sqrt(0.24 / draws))
    assert np.all(np.sort(numbers[:, 1, :3], axis=1) == [0, 1, 2])
    np.testing.assert_array_equal(mask[:, 1:], np.broadcast_to([[1, 1, 1, 0], [0] * 4, [1, 0, 0, 0]], (draws, 3, 4)))


def test_thinning_and_filling():
    found = distinct(jnp.array([[9, 2, 9, 5, EMPTY, 2], [1, 2, 3, 4, 5, 6]]))
    assert found.number.tolist() == [3, 6]
    np.testing.assert_array_equal(is_found(found.ids, jnp.array([[2, 3], [6, 9]])), [[True, False], [True, False]])
    chosen, mask, log_kept = thin(jax.random.key(0), found, 4)
    assert set(chosen[0][mask[0]].tolist()) == {2, 5, 9}
    np.testing.assert_allclose(log_kept, np.log([1, 4 / 6]), rtol=1e-6)
    filled, _, _, log_fill = thin_and_fill(jax.random.key(1), found, 5, 2, jnp.int32(12))
    for group, inside in enumerate([{2, 5, 9}, {1, 2, 3, 4, 5, 6}]):
        ids = filled[group].tolist()
        assert len(set(ids)) == 5
        assert max(ids) < 12
        assert len(set(ids) & inside) == 3
    np.testing.assert_allclose(log_fill, np.log([2 / 9, 2 / 6]), rtol=1e-6)


def test_refreshes_get_exponentially_rarer():
    due = samplers.exponential_schedule(50, growth=1.5)
    steps = [step for step in range(3000) if due(step)]
    assert steps[:3] == [50, 125, 237]
    np.testing.assert_allclose(np.diff(steps)[1:] / np.diff(steps)[:-1], 1.5, rtol=0.02)
    assert [s for s in range(200) if samplers.exponential_schedule(60, growth=1)(s)] == [60, 120, 180]
    assert lsh["simhash"](schedule=due).schedule(50)


@pytest.mark.slow
def test_training_with_updates_and_refresh_keeps_the_index_current():
    sampler = samplers.lsh(hash=samplers.simhash(), num_tables=4, num_hashes=4, budget=8, num_groups=1)
    training = problems.Training(problems.model(samplers.every(sampler, 3), losses.css))
    for step in range(3):
        assert np.isfinite(float(training.step(problems.Source()[0, step])))
    anew = sampler.refresh(training.sampler, jax.random.key(0), training.model.head.classes())
    assert cx.refresh(training.model, 3)
    assert jax.tree.structure(anew) == jax.tree.structure(training.sampler)
    assert int(training.sampler.updates) == 0
    assert np.isfinite(float(training.step(problems.Source()[0, 3])))


def test_one_training_step_copies_no_table():
    """The buckets are read by the draw and written by the update of the same compiled, donated step."""
    from tests.samplers.lsh.test_tables import copies_of

    sampler = samplers.lsh(hash=samplers.simhash(), num_tables=5, num_hashes=12, budget=8, num_groups=1, capacity=16)

    def make():
        model = problems.model(sampler, losses.css)
        return model, cx.Optimizer(model, optax.sgd(0.1))

    text = problems.compiled(make, problems.Source()[0, 0]).as_text()
    assert not copies_of(make()[0].head.state.get_value().tables, text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0}, "budget"),
        ({"num_tables": 0}, "num_tables"),
        ({"num_buckets": 48}, "power of two"),
        ({"num_buckets": 128}, "number of codes"),
        ({"num_hashes": 33}, "32 bits"),
        ({"eviction": "lru"}, "eviction"),
        ({"query": "input"}, "query"),
        ({"take": "some"}, "take"),
        ({"fill": "uniform"}, "budget"),
        ({"fill": "uniform", "budget": 4, "num_fill": 4}, "num_fill < budget"),
        ({"num_fill": 4}, "num_fill"),
        ({"update_every": 0}, "update_every"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    good = {"hash": samplers.simhash(), "num_tables": 2, "num_hashes": 6}
    with pytest.raises(Exception, match=message):
        samplers.lsh(**(good | arguments))


def test_a_budget_of_fewer_reads_than_examples_serves_some_of_them_in_each_draw():
    """Stated counts are as far above the truth as where each example reads one entry, by a third."""
    rng = np.random.default_rng(0)
    vectors, embeddings = (jnp.asarray(rng.normal(size=(number, 4)), jnp.float32) for number in (40, 24))
    classes = cx.Classes(vectors, None, None, jnp.int32(40))
    query = cx.Query(embeddings, jnp.zeros((24, 1), jnp.int32), classes)
    every_id = jnp.arange(40, dtype=jnp.int32)[None]

    def found_and_stated(budget):
        sampler = samplers.lsh(hash=samplers.simhash(), num_tables=2, num_hashes=3, budget=budget, num_groups=1)

        @jax.jit
        @jax.vmap
        def draw(key):
            state = sampler.init(key, classes)
            drawn = sampler.sample(state, jax.random.fold_in(key, 1), query)
            found = jnp.zeros(40).at[drawn.ids[0]].add(drawn.mask[0])
            return found, jnp.exp(sampler.log_expected_count(state, drawn, every_id, query)[0])

        return [np.mean(of, axis=0) for of in draw(jax.random.split(jax.random.key(1), 2000))]

    (found, stated), (found_by_each, stated_by_each) = map(found_and_stated, (4, 12))
    np.testing.assert_allclose(found.sum(), 4)
    np.testing.assert_allclose(stated.sum() / found.sum(), stated_by_each.sum() / found_by_each.sum(), rtol=0.1)
