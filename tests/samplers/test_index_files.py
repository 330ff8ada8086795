"""Files of an index: the same after loading, and refused where they are not what was written."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import candax as cx
from candax import samplers
from candax.files import read_arrays, write_arrays
from candax.samplers import load_index, save_index
from tests.samplers.test_ivf_index import clustered, queries_near

INDEX = samplers.lsh_index(hash=samplers.simhash(), num_tables=2, num_hashes=2, capacity=4)


@pytest.fixture
def written(tmp_path):
    """A file of 9 classes, and what is in it."""
    classes = cx.Classes(jax.random.normal(jax.random.key(0), (9, 3)), jnp.zeros(9), None, jnp.int32(8))
    state = jax.jit(INDEX.build)(jax.random.key(1), classes)
    path = tmp_path / "index.safetensors"
    save_index(path, INDEX, state, classes)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    return path, state, classes


def refused(path, what, retriever=None):
    """With what was expected, what came, and what to do."""
    with pytest.raises(ValueError, match=rf"(?s)expected .*{path.name} to be an index .*got .*{what}.* Give the path"):
        load_index(path, retriever)


def rewritten(path, kind="candax index 1", **changes):
    """The file with another header, and the digest that belongs to it."""
    header, arrays = read_arrays(path, "candax index 1")
    write_arrays(path, kind, header | changes, arrays)


def test_the_index_and_its_classes_are_the_same(written):
    path, state, classes = written
    retriever, loaded, its_classes = load_index(path)
    assert (retriever.kind, retriever.settings["num_tables"], retriever.settings["hash"].num_bits) == ("lsh", 2, 1)
    assert jax.tree.structure((loaded, its_classes)) == jax.tree.structure((state, classes))
    jax.tree.map(np.testing.assert_array_equal, (loaded, its_classes), (state, classes))
    save_index(path, INDEX, state, classes, with_classes=False)
    assert load_index(path, INDEX)[2] is None


@pytest.mark.parametrize("codes", ["rotated", "int8"])
def test_bfloat16_and_a_normalised_head(codes, tmp_path):
    classes = clustered(normalized=True)
    classes = dataclasses.replace(classes, vectors=classes.vectors.astype(jnp.bfloat16))
    index = samplers.ivf_index(num_centers=16, hm_num=500, num_kept=60, codes=codes, near="logit")
    state = jax.jit(index.build)(jax.random.key(0), classes)
    save_index(tmp_path / "index", index, state, classes)
    again, loaded, its_classes = load_index(tmp_path / "index")
    assert again.settings == index.settings
    assert its_classes.normalized
    jax.tree.map(np.testing.assert_array_equal, (loaded, its_classes), (state, classes))


def test_every_changed_byte_and_every_part_of_a_file_is_refused(written):
    path = written[0]
    whole = path.read_bytes()
    for place in [*range(0, 1200, 7), *range(1200, len(whole), 13), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        refused(path, "")
    for size in (0, 3, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(path, "a part of one")
    path.write_bytes(whole)
    assert load_index(path)[0].kind == "lsh"


def test_other_files_are_refused(written, tmp_path):
    path, state, classes = written
    refused(path, "an index of kind 'lsh' where the retriever's kind is 'exact'", samplers.exact_index())
    settings = dict(INDEX.settings)
    refused(path, r"other settings .*'num_tables': \(2, 3\)", samplers.lsh_index(**settings | {"num_tables": 3}))
    rewritten(path, num_classes=10)
    refused(path, "other arrays than .*classes.biases, classes.vectors, state.tables")
    rewritten(path, kind="candax index 2")
    refused(path, "expected a file of the kind 'candax index 1', got 'candax index 2'")
    other = tmp_path / "other"
    save_file({"a": np.zeros(3)}, other)
    refused(other, "got another file")
    for junk in (b"", b"no tensors at all", b"\x80\x04N."):
        other.write_bytes(junk)
        refused(other, "got another file")
    with pytest.raises(FileNotFoundError):
        load_index(tmp_path / "none")
    own = INDEX._replace(kind="mine")
    save_index(path, own, state, classes)
    refused(path, "the kind 'mine', not one of exact, .*: pass retriever=")
    jax.tree.map(np.testing.assert_array_equal, load_index(path, own)[1], state)


def test_settings_that_no_file_can_hold_are_refused(tmp_path):
    unnamed = samplers.lsh_index(hash=samplers.simhash()._replace(made_by=None), num_tables=2, num_hashes=2)
    classes = cx.Classes(jnp.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"expected settings that a file can hold .*kind 'lsh'"):
        save_index(tmp_path / "index", unnamed, unnamed.build(jax.random.key(0), classes), classes)
    assert not (tmp_path / "index").exists()


def test_a_hash_family_of_ones_own_needs_its_retriever(written):
    path, state, classes = written
    family = samplers.simhash()._replace(made_by=("mine",))
    own = samplers.lsh_index(hash=family, num_tables=2, num_hashes=2, capacity=4)
    save_index(path, own, state, classes)
    refused(path, "the hash family 'mine', not one of dwta, simhash: pass retriever=")
    jax.tree.map(np.testing.assert_array_equal, load_index(path, own)[1], state)


def test_a_state_may_hold_keys(tmp_path):
    exact, classes = samplers.exact_index(), cx.Classes(jax.random.normal(jax.random.key(0), (9, 3)))

    def build(key, classes):
        return {"key": key, "more": {"keys": jax.random.split(key, 2)}}

    keyed = exact._replace(
        build=build,
        search=lambda state, query, k: exact.search((), query, k),
        follow=lambda state, key, row_ids, rows: state,
        refresh=lambda state, key, classes: build(key, classes),
    )
    cx.testing.check_retriever(keyed, laws=["files", "follow"])
    path, state = tmp_path / "index", build(jax.random.key(3), classes)
    save_index(path, keyed, state, classes)
    loaded = load_index(path, keyed)[1]
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    for got, wanted in zip(jax.tree.leaves(loaded), jax.tree.leaves(state), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(wanted))
    rewritten(path, keys={})
    refused(path, "keys of another kind .*: state.key, state.more.keys", keyed)


def test_a_loaded_index_is_searched_with_other_numbers(tmp_path):
    classes = dataclasses.replace(clustered(), biases=None)
    index = samplers.ivf_index(num_centers=16, hm_num=50)
    save_index(tmp_path / "index", index, jax.jit(index.build)(jax.random.key(0), classes), classes)
    again, state, _ = load_index(tmp_path / "index")
    more = samplers.ivf_index(**again.settings | {"hm_num": 3000, "num_kept": 3000})
    queries = queries_near(classes, 4)
    best = np.argmax(np.asarray(queries) @ np.asarray(classes.vectors).T, axis=1)
    np.testing.assert_array_equal(more.find(state, queries, classes, 1)[1][:, 0], best)
