"""The seams as pytrees."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.base import labels_mask, never, no_update, pytree, static_field


def make_logits(num_classes: int = 7) -> cx.SampledLogits:
    no = jnp.zeros((2, 3), bool)
    return cx.SampledLogits(
        jnp.ones((2, 1)),
        jnp.zeros((2, 1)),
        jnp.ones((2, 1), bool),
        jnp.ones((2, 3)),
        jnp.zeros((2, 3)),
        ~no,
        no,
        num_classes,
    )


def make_classes(biases: jax.Array | None = None) -> cx.Classes:
    return cx.Classes(jnp.ones((5, 2)), biases, None, jnp.int32(4))


def test_leaves_are_the_arrays_and_static_fields_are_structure() -> None:
    assert len(jax.tree.leaves(make_logits())) == 7
    structures = [str(jax.tree.structure(make_logits(n))) for n in (7, 7, 8)]
    assert structures[0] == structures[1] != structures[2]
    assert len(jax.tree.leaves(make_classes())) == 2


def test_leaves_may_become_anything() -> None:
    """JAX fills trees with objects that are no arrays; run-time type checks must let them pass."""
    assert jax.tree.map(lambda leaf: None, make_logits()).true is None
    flags = jax.tree.map(lambda leaf: leaf.ndim > 1, make_classes())
    assert flags.vectors is True
    assert flags.num_valid is False
    shapes = jax.eval_shape(lambda: make_logits())
    assert isinstance(shapes.true, jax.ShapeDtypeStruct)
    assert shapes.num_classes == 7


def test_paths_name_the_fields() -> None:
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(make_classes(jnp.ones(5)))]
    assert paths == [".vectors", ".biases", ".num_valid"]


def test_through_jit_and_vmap_and_grad() -> None:
    logits = make_logits()
    same = jax.jit(lambda tree: tree)(logits)
    assert type(same) is cx.SampledLogits
    assert same.num_classes == 7
    batched = jax.vmap(lambda x: dataclasses.replace(logits, true=logits.true * x))(jnp.arange(4.0))
    assert batched.true.shape == (4, 2, 1)
    gradient = jax.grad(lambda classes: jnp.sum(classes.vectors**2), allow_int=True)(make_classes())
    np.testing.assert_array_equal(gradient.vectors, 2 * np.ones((5, 2)))


def test_another_static_value_traces_again() -> None:
    traced = []

    @jax.jit
    def count(logits: cx.SampledLogits) -> jax.Array:
        traced.append(logits.num_classes)
        return jnp.sum(logits.true) * logits.num_classes

    for num_classes in (7, 7, 9):
        count(make_logits(num_classes))
    assert traced == [7, 9]


def test_fields_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(make_classes(), "biases", None)  # noqa: B010  # an assignment is what is refused


def test_equality_is_identity_so_that_arrays_are_not_compared() -> None:
    assert make_classes() != make_classes()


def test_own_pytree_with_defaults() -> None:
    @pytree
    class Pair:
        left: jax.Array
        right: jax.Array | None = None
        width: int = static_field(default=3)

    pair = Pair(jnp.ones(2))
    assert pair.width == 3
    doubled = jax.tree.map(lambda leaf: 2 * leaf, pair)
    assert doubled.left.tolist() == [2, 2]
    assert doubled.right is None
    assert doubled.width == 3


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[num_classes, dim\]"):
        cx.Classes(jnp.ones(5), None, None, jnp.int32(4))
    with pytest.raises(ValueError, match="one bias per class"):
        cx.Classes(jnp.ones((5, 2)), jnp.ones(6), None, jnp.int32(4))
    for number in (6, -1):
        with pytest.raises(ValueError, match=f"expected num_valid of 0 ... 5, the number of rows, got {number}"):
            cx.Classes(jnp.ones((5, 2)), None, None, jnp.int32(number))
    jax.jit(lambda number: cx.Classes(jnp.ones((5, 2)), None, None, number))(jnp.int32(6))  # not known while traced


def test_lists_become_arrays() -> None:
    classes = cx.Classes([[1.0, 2.0], [3.0, 4.0]], [0.0, 1.0])
    assert classes.vectors.shape == (2, 2)
    assert classes.biases.tolist() == [0, 1]


def test_small_functions() -> None:
    assert make_classes().num_classes == 5
    assert labels_mask(jnp.array([[3, -1], [0, 2]])).tolist() == [[True, False], [True, True]]
    assert not never(10)
    state, classes = {"any": jnp.ones(3)}, make_classes()
    query = cx.Query(jnp.ones((1, 2)), jnp.array([[3]]), classes)
    assert no_update(state, jax.random.key(0), query, jnp.array([3]), jnp.ones((1, 2))) is state


def test_counts_that_do_not_belong_to_the_classes_are_refused():
    with pytest.raises(ValueError, match=r"expected counts of shape \[5\], one per class, got \[3\]"):
        cx.Classes(jnp.zeros((5, 2)), None, jnp.ones(3))
