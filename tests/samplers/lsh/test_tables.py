"""Tables against a plain Python model: build, update by rows, eviction; in place, and at a cost by rows."""

import functools
import re

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import candax as cx
from candax import samplers
from candax.samplers.common.found import EMPTY
from candax.samplers.lsh import tables as lsh_tables
from candax.samplers.lsh.tables import build, empty_tables, update

NUM_CLASSES, NUM_TABLES, NUM_BUCKETS, ROWS = 13, 2, 4, 5

jitted_build = jax.jit(build)
jitted_update = jax.jit(update, static_argnames="eviction")


def contents(tables):
    """{(table, bucket): ids in order}, and what every bucket must obey."""
    found = {}
    for table, bucket in np.ndindex(*tables.loads.shape):
        row = np.asarray(tables.buckets)[table, bucket]
        ids = [int(i) for i in row if i != EMPTY]
        assert np.all(row[len(ids) :] == EMPTY), "gaps in a bucket"
        assert len(set(ids)) == len(ids)
        found[table, bucket] = ids
    return found


def built(codes, capacity):
    return jitted_build(empty_tables(NUM_CLASSES, NUM_TABLES, NUM_BUCKETS, capacity), jax.random.key(0), codes)


def random_codes(rng, shape, *, absent=0.1):
    codes = rng.integers(0, NUM_BUCKETS, shape)
    return jnp.asarray(np.where(rng.random(shape) < absent, NUM_BUCKETS, codes), jnp.uint32)


def sets_of(codes):
    codes = np.asarray(codes)
    return {
        (table, bucket): set(np.flatnonzero(codes[:, table] == bucket).tolist())
        for table in range(codes.shape[1])
        for bucket in range(NUM_BUCKETS)
    }


def as_sets(tables):
    return {where: set(ids) for where, ids in contents(tables).items()}


def check_counters(tables, wanted):
    loads = np.asarray(tables.loads)
    for (table, bucket), ids in wanted.items():
        assert loads[table, bucket] == len(ids)


@pytest.mark.parametrize("num_classes", [1, 2, 13, 64])
def test_building_puts_every_class_into_its_buckets(num_classes):
    codes = random_codes(np.random.default_rng(num_classes), (num_classes, NUM_TABLES))
    tables = jitted_build(empty_tables(num_classes, NUM_TABLES, NUM_BUCKETS, 64), jax.random.key(0), codes)
    assert as_sets(tables) == sets_of(codes)
    check_counters(tables, sets_of(codes))
    assert int(tables.evictions) == 0
    np.testing.assert_array_equal(tables.codes, codes)


def test_building_in_several_sorts(monkeypatch):
    """With many buckets only a few classes are sorted at a time; here 2^20 buckets and 2^13 classes: 4 sorts."""
    num_classes, num_buckets = 1 << 13, 1 << 20
    codes = jnp.asarray(np.random.default_rng(0).integers(0, 50, (num_classes, 1)) * 20_011, jnp.uint32)
    tables = jitted_build(empty_tables(num_classes, 1, num_buckets, 16), jax.random.key(0), codes)
    for code in range(0, 50 * 20_011, 20_011):
        wanted = set(np.flatnonzero(np.asarray(codes)[:, 0] == code).tolist())
        row = [int(i) for i in np.asarray(tables.buckets[0, code]) if i != EMPTY]
        assert len(set(row)) == len(row) == min(len(wanted), 16)
        assert set(row) <= wanted
        assert int(tables.loads[0, code]) == len(wanted)
    assert int(tables.loads.sum()) == num_classes


def test_a_full_bucket_is_built_with_a_uniform_subset():
    codes = jnp.zeros((11, 1), jnp.uint32)

    def kept(key):
        row = build(empty_tables(11, 1, 1, 4), key, codes).buckets[0, 0]
        return jnp.zeros(11).at[row].add(1.0)

    draws = 20_000
    keys = jax.random.split(jax.random.key(1), draws)
    rate = np.asarray(jax.jit(lambda keys: jax.vmap(kept)(keys).mean(axis=0))(keys))
    np.testing.assert_allclose(rate, 4 / 11, atol=5 * np.sqrt(4 / 11 * 7 / 11 / draws))


class Steps:
    """A random sequence of updates, as hypothesis draws it."""

    def __init__(self, seed, number, absent):
        rng = np.random.default_rng(seed)
        self.start = random_codes(rng, (NUM_CLASSES, NUM_TABLES), absent=absent)
        self.updates = []
        for _ in range(number):
            rows = np.sort(rng.choice(NUM_CLASSES, rng.integers(0, ROWS + 1), replace=False))
            fillers = NUM_CLASSES + np.arange(ROWS - len(rows))
            ids = jnp.asarray(np.concatenate([rows, fillers]), jnp.int32)
            self.updates.append((ids, random_codes(rng, (ROWS, NUM_TABLES), absent=absent)))


steps = st.builds(Steps, st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([0.0, 0.3]))
few = hypothesis.settings(max_examples=10, deadline=None, derandomize=True)


@few
@hypothesis.given(steps, st.sampled_from(["fifo", "reservoir"]))
def test_updating_rows_gives_the_sets_of_building_anew(sequence, eviction):
    tables = built(sequence.start, NUM_CLASSES)
    codes = np.array(sequence.start)
    for i, (row_ids, new) in enumerate(sequence.updates):
        tables = jitted_update(tables, jax.random.key(i), row_ids, new, eviction=eviction)
        real = np.asarray(row_ids) < NUM_CLASSES
        codes[np.asarray(row_ids)[real]] = np.asarray(new)[real]
    anew = jitted_build(tables, jax.random.key(9), jnp.asarray(codes))
    assert as_sets(tables) == as_sets(anew) == sets_of(codes)
    np.testing.assert_array_equal(tables.codes, codes)
    np.testing.assert_array_equal(tables.loads, anew.loads)
    assert int(tables.evictions) == 0


@few
@hypothesis.given(steps, st.sampled_from([1, 3]))
def test_full_buckets_are_first_in_first_out(sequence, capacity):
    tables = built(sequence.start, capacity)
    model, codes, evicted = contents(tables), np.array(sequence.start), int(tables.evictions)
    assert evicted == sum(max(0, len(ids) - capacity) for ids in sets_of(codes).values())
    for row_ids, new in sequence.updates:
        tables = jitted_update(tables, jax.random.key(0), row_ids, new, eviction="fifo")
        moves = [
            (int(row), table, int(codes[row, table]), int(new[i, table]))
            for i, row in enumerate(np.asarray(row_ids))
            if row < NUM_CLASSES
            for table in range(NUM_TABLES)
            if codes[row, table] != new[i, table]
        ]
        for row, table, old, _ in moves:
            if old < NUM_BUCKETS and row in model[table, old]:
                model[table, old].remove(row)
        for row, table, _, to in moves:
            codes[row, table] = to
            if to < NUM_BUCKETS:
                model[table, to].append(row)
                evicted += len(model[table, to]) > capacity
                model[table, to] = model[table, to][-capacity:]
    assert contents(tables) == model
    assert int(tables.evictions) == evicted
    check_counters(tables, sets_of(codes))


@few
@hypothesis.given(steps, st.sampled_from([1, 3]))
def test_a_reservoir_holds_a_subset_of_the_right_size(sequence, capacity):
    tables = built(sequence.start, capacity)
    codes = np.array(sequence.start)
    for i, (row_ids, new) in enumerate(sequence.updates):
        before = as_sets(tables)
        tables = jitted_update(tables, jax.random.key(i), row_ids, new, eviction="reservoir")
        real = np.asarray(row_ids) < NUM_CLASSES
        old = codes.copy()
        codes[np.asarray(row_ids)[real]] = np.asarray(new)[real]
        now, belong, belonged = as_sets(tables), sets_of(codes), sets_of(old)
        for where, ids in now.items():
            assert ids <= belong[where]
            came = belong[where] - belonged[where]
            assert len(ids) == min(capacity, len(before[where] & belong[where]) + len(came))
    check_counters(tables, sets_of(codes))


def test_a_reservoir_is_uniform_over_what_came():
    """10 classes enter one bucket of 4 in three updates: each stays with probability 4 / 10."""
    absent = jnp.full((10, 1), 1, jnp.uint32)

    def kept(key):
        key_build, *keys = jax.random.split(key, 4)
        tables = build(empty_tables(10, 1, 1, 4), key_build, absent.at[:3].set(0))
        for key, rows in zip(keys, ([3, 4], [5, 6, 7, 8], [9]), strict=True):
            codes = jnp.zeros((len(rows), 1), jnp.uint32)
            tables = update(tables, key, jnp.array(rows), codes, eviction="reservoir")
        return jnp.zeros(10).at[tables.buckets[0, 0]].add(1.0)

    draws = 2_000
    keys = jax.random.split(jax.random.key(1), draws)
    rate = np.asarray(jax.jit(lambda keys: jax.lax.map(kept, keys, batch_size=1000).mean(axis=0))(keys))
    np.testing.assert_allclose(rate, 0.4, atol=5 * np.sqrt(0.24 / draws))


@pytest.mark.slow
def test_more_changes_than_a_chunk_and_many_in_one_bucket():
    """All classes leave one bucket for others: several chunks, and thousands of deletions from the same bucket."""
    num_classes, num_buckets = 1500, 4
    codes = jnp.zeros((num_classes, 2), jnp.uint32)
    tables = jitted_build(empty_tables(num_classes, 2, num_buckets, num_classes), jax.random.key(0), codes)
    new = jnp.asarray(np.random.default_rng(0).integers(0, num_buckets, (num_classes, 2)), jnp.uint32)
    tables = jitted_update(tables, jax.random.key(1), jnp.arange(num_classes), new)
    assert 2 * 2 * num_classes > 4 * lsh_tables._CHUNK
    assert as_sets(tables) == sets_of(new)


def compiled_step(num_classes):
    """A query whose result decides the update, as in a training step: shapes only, nothing is allocated."""
    num_tables, num_buckets = 6, num_classes // 64

    def step(tables, key, queries, rows):
        found = tables.buckets[jnp.arange(num_tables), queries.astype(jnp.int32)]
        row_ids = jnp.arange(rows) + jnp.max(jnp.where(found == EMPTY, 0, found))
        codes = jax.random.bits(key, (rows, num_tables)) % jnp.uint32(num_buckets)
        return update(tables, key, row_ids, codes), jnp.sum(found)

    num_buckets = 1 << (num_buckets.bit_length() - 1)
    tables = jax.eval_shape(functools.partial(empty_tables, num_classes, num_tables, num_buckets, 64))
    queries = jax.ShapeDtypeStruct((32, num_tables), jnp.uint32)
    key = jax.eval_shape(jax.random.key, 0)
    return jax.jit(step, donate_argnums=0, static_argnums=3).lower(tables, key, queries, 200).compile(), tables


def test_an_update_is_in_place_and_its_scratch_does_not_grow():
    small, _ = compiled_step(10**5)
    large, tables = compiled_step(10**6)
    assert small.memory_analysis().temp_size_in_bytes == large.memory_analysis().temp_size_in_bytes
    assert not copies_of(tables, large.as_text())


def copies_of(tables, text):
    """Lines of an optimised program that copy an array of the size of codes, buckets or loads."""
    num_tables, num_buckets, capacity = tables.buckets.shape
    sizes = [tables.codes.shape, tables.buckets.shape, tables.loads.shape]
    sizes += [(num_tables * num_buckets, capacity), (num_tables * num_buckets,), (num_tables * num_buckets * capacity,)]
    shapes = ["[" + ",".join(map(str, shape)) + "]" for shape in sizes]
    copied = re.findall(r"= (\S+) copy(?:-start)?\(", text)
    return [result for result in copied if any(shape in result for shape in shapes)]


def test_a_copy_would_be_seen():
    """The planted fault of the test above: tables that are not donated must be copied."""
    tables = jax.eval_shape(functools.partial(empty_tables, 5000, 2, 256, 32))
    codes, ids = jax.ShapeDtypeStruct((4, 2), jnp.uint32), jax.ShapeDtypeStruct((4,), jnp.int32)
    key = jax.eval_shape(jax.random.key, 0)
    assert copies_of(tables, jax.jit(update).lower(tables, key, ids, codes).compile().as_text())


def test_too_many_buckets_are_refused():
    with pytest.raises(ValueError, match="num_buckets"):
        empty_tables(10, 1000, 1 << 24, 1)


def test_more_places_than_31_bits_can_number_are_refused():
    sampler = samplers.lsh(hash=samplers.simhash(), num_tables=1, num_hashes=16, capacity=None)
    classes = jax.eval_shape(lambda: cx.Classes(jnp.zeros((40_000, 4)), None, None, jnp.int32(40_000)))
    with pytest.raises(ValueError, match="fewer than 2\\^31 places per table, got 65536 buckets of 40000 classes"):
        jax.eval_shape(sampler.init, jax.random.key(0), classes)
