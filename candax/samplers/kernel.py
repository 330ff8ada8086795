"""Kernel sampling: draws classes in proportion to a kernel of embedding and class vector, by a tree of feature sums."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import Candidates, Classes, Facts, KeyArray, Query, Sampler, pytree
from candax.blocks import DEFAULT_BLOCK_SIZE, Block, walk
from candax.checks import check_positive, checked
from candax.cosines import as_scored
from candax.runs import starts_of_runs
from candax.samplers.common.features import positive, quadratic
from candax.samplers.common.groups import count_groups, mean_of_groups
from candax.samplers.common.schedules import built_anew, schedule_of
from candax.samplers.common.scoring import SCRATCH
from candax.samplers.common.shares import divisible

_EXACT = jax.lax.Precision.HIGHEST  # counts and draws must agree, on devices that round products too


@pytree
class KernelTree:
    """A binary tree over runs of class ids, with the sum of the features of each node's classes.

    Attributes:
        projection: of class vectors and embeddings to ``rank`` coordinates.
        tables: what the features need, see ``Features``.
        projected: the class vectors, projected.
        sums: the sum of each node i, with children 2i and 2i + 1; the root is node 1, and the last half are the leaves.
        num_valid: classes that can be drawn.
    """

    projection: Float[Array, "dim rank"]
    tables: Any
    projected: Float[Array, "num_classes rank"]
    sums: Float[Array, "nodes features"]
    num_valid: Int[Array, ""]


@checked
@divisible("num_sampled")
def kernel(
    num_sampled: int,
    *,
    features: Literal["quadratic", "positive"] = "quadratic",
    alpha: float = 100.0,
    rank: int | None = 16,
    num_features: int = 128,
    leaf_size: int = 8,
    scale: float = 1.0,
    schedule: int | Callable[[int], bool] | None = None,
    num_groups: int | None = None,
) -> Sampler:
    """Classes in proportion to a kernel of the embedding and the class vector, q(c | e) ~ k(P e, P w_c).

    * "quadratic": k(h, x) = alpha (h . x)^2 + 1, with D = rank (rank + 1) / 2 + 1 features;
    * "positive": k(h, x) = sum_i exp(v_i . h) exp(v_i . x - |x|^2 / 2) over D = ``num_features`` random directions
      v_i, which for each h is proportional to exp(h . x), but for noise. The cosine features of Rawat et al. estimate
      the same, but are sometimes negative and then no probability; these never are, so that nothing has to be cut off.

    P projects on the ``rank`` principal directions of the class vectors (their mean is not subtracted), found at a
    refresh. A kernel is an inner product of features, so its sum over many classes is one too: a binary tree over runs
    of at most ``leaf_size`` ids holds the sum of features of each node. A draw goes from the root to a leaf, choosing
    each child by its share, and takes a class of the leaf by the kernel itself. A group draws from the mean of its
    examples' distributions, without those that have no label where others do (padding).

    The expected count is S k(c) / sum_c' k(c') exactly, in float32: each share on the way down has a rounding error of
    about 1e-6 of itself, where alpha |h|^2 |x|^2 is not large beside 1. The quadratic form cancels where it is: with
    |h| = 16 and |x| = 3 the worst of 4,096 counts is off by .3 %, with 100 and 10 by an eighth. After each step the
    sums follow the changed rows, so that counts are those of the tree as it is; projection and directions change at a
    refresh. Biases are not used.

    Cost: O(D log(num_classes / leaf_size) + leaf_size D) per draw, and the same plus O(leaf_size rank^2) per changed
    row. The state takes 4 rank bytes per class and 8 D bytes per leaf: at rank 16 and leaves of 8 classes about 200
    bytes per class.

    Args:
        num_sampled: S, candidates per group.
        features: which kernel.
        alpha: weight of the square; the constant term has weight 1 ("quadratic").
        rank: coordinates that are kept; None: all, so that D of "quadratic" grows with the square of dim.
        num_features: D of "positive".
        leaf_size: the most classes in a leaf.
        scale: what a margin multiplies logits by, where these are cosines ("positive").
        schedule: when to refresh: every so many steps, or ``(step) -> bool``. None: after 50 steps, then exponentially
            rarer, see ``exponential_schedule``.
        num_groups: G, groups per batch (1: one shared set); None: one set per example.

    Returns:
        A ``Sampler``; its state is a ``KernelTree``.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.array([[3.0, 0.0], [-1.0, 0.0], [0.0, 3.0], [0.0, 0.0]]))
        >>> sampler = cx.samplers.kernel(6, alpha=1.0, leaf_size=2, rank=None)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.array([[1.0, 0.0]]), jnp.array([[0]]), classes)
        >>> candidates = sampler.sample(state, jax.random.key(1), query)
        >>> counts = sampler.log_expected_count(state, candidates, jnp.arange(4)[None], query)
        >>> [round(float(x), 3) for x in jnp.exp(counts)[0]]
        [4.286, 0.857, 0.429, 0.429]

    Source: Blanc and Rendle, Adaptive Sampled Softmax with Kernel Based Sampling (2018); Rawat et al., Sampled Softmax
        with Random Fourier Features (2019); positive features: Choromanski et al. (2021). The projection and the mean
        over a group are ours.
    """
    for name, value in (("num_sampled", num_sampled), ("num_features", num_features), ("leaf_size", leaf_size)):
        check_positive(name, value)
    check_positive("num_groups", num_groups, optional=True)
    check_positive("rank", rank, optional=True)
    for name, real in (("alpha", alpha), ("scale", scale)):
        if not real > 0:
            raise ValueError(f"expected a finite {name} > 0, got {real!r}.")
    made = quadratic(alpha) if features == "quadratic" else positive(num_features)

    def project(rows: Float[Array, "*n dim"], projection: Array, normalized: bool) -> Float[Array, "*n rank"]:
        return as_scored(rows.astype(jnp.float32), normalized) @ projection * jnp.sqrt(scale).astype(jnp.float32)

    def of_leaves(
        projected: Float[Array, "num_classes rank"], leaves: Int[Array, " n"], stride: int, num_valid: Int[Array, ""]
    ) -> tuple[Int[Array, "n leaf"], Float[Array, "n leaf rank"], Bool[Array, "n leaf"]]:
        """Ids and vectors in the slots of these leaves, and which slots hold a class."""
        # The width is the same for any number of classes; the first ``stride`` slots are the leaf's.
        slot = jnp.arange(leaf_size, dtype=jnp.int32)
        ids = leaves[:, None] * stride + slot
        real = (slot < stride) & (ids < num_valid)
        return ids, projected[jnp.where(real, ids, 0)], real

    @jax.jit
    def build(key: KeyArray, classes: Classes) -> KernelTree:
        dim = classes.vectors.shape[1]
        projection = _principal(classes, min(rank or dim, dim))
        width = projection.shape[1]

        def keep(projected: Array, block: Block) -> Array:
            x = project(block.vectors, projection, classes.normalized)
            return jax.lax.dynamic_update_slice_in_dim(projected, x, block.start, axis=0)

        empty = jnp.zeros((classes.num_classes, width))
        projected = walk(classes, jnp.dtype(jnp.float32), keep, empty, block_size=DEFAULT_BLOCK_SIZE)

        def largest(exponents: Callable[[Array], Array]) -> Array:
            def of(block: tuple[Array, Array]) -> Array:
                return jnp.where(block[1], exponents(block[0]), -jnp.inf)

            valid = jnp.arange(classes.num_classes) < jnp.maximum(classes.num_valid, 1)
            rows = max(1, SCRATCH // (8 * num_features))
            found = jax.lax.map(of, (projected, valid[:, None]), batch_size=min(rows, classes.num_classes))
            return jnp.max(found, axis=0)

        tables = made.init(key, width, largest)
        depth, stride = _shape(classes.num_classes, leaf_size)
        number = made.number(width)

        def leaf(which: Int[Array, ""]) -> Array:
            _, x, real = of_leaves(projected, which[None], stride, classes.num_valid)
            return made.summed(tables, x, real)[0]

        at_once = min(1 << depth, max(1, SCRATCH // (8 * leaf_size * number)))
        level = jax.lax.map(leaf, jnp.arange(1 << depth, dtype=jnp.int32), batch_size=at_once)
        sums = jnp.zeros((2 << depth, number)).at[1 << depth :].set(level)
        for i in reversed(range(depth)):
            level = level[0::2] + level[1::2]
            sums = sums.at[1 << i : 2 << i].set(level)
        return KernelTree(projection, tables, projected, sums, classes.num_valid.astype(jnp.int32))

    def shares(state: KernelTree, query: Query) -> Float[Array, "G features"]:
        """The f of each group: f . (features of x) is the chance of a class with vector x in one draw."""
        h = project(query.embeddings, state.projection, query.classes.normalized)
        each = made.of_query(state.tables, h)
        each = each / jnp.sum(each * state.sums[1], axis=1, keepdims=True)
        return mean_of_groups(each, query, count_groups(num_groups, query))

    def sample(state: KernelTree, key: KeyArray, query: Query) -> Candidates:
        f = shares(state, query)
        groups, (depth, stride) = f.shape[0], _shape(state.projected.shape[0], leaf_size)
        number, rows = f.shape[1], groups * num_sampled

        def down(level: Array, node: Int[Array, "G S"]) -> Int[Array, "G S"]:
            left = 2 * node
            # Two gathers of one row each: pairs of rows would first be copied to lie side by side.
            mass = [jnp.einsum("gsf,gf->gs", state.sums[left + side], f, precision=_EXACT) for side in (0, 1)]
            return left + _right(jax.random.fold_in(key, level), *mass)

        node = jax.lax.fori_loop(0, depth, down, jnp.ones((groups, num_sampled), jnp.int32))
        ids, x, real = of_leaves(state.projected, node.reshape(-1) - (1 << depth), stride, state.num_valid)
        at_once = min(groups, max(1, SCRATCH // (num_sampled * leaf_size * number)))
        wide = x.reshape(groups, num_sampled * leaf_size, -1)
        weights = jax.lax.map(
            lambda of: made.weights(state.tables, of[0][None], of[1][None])[0], (f, wide), batch_size=at_once
        )
        weights = jnp.where(real, jnp.maximum(weights.reshape(rows, leaf_size), 0.0), 0.0)
        place = _by_weight(jax.random.fold_in(key, depth), weights)
        # A leaf without classes, or without weight, must not lead to an invalid id.
        place = jnp.minimum(place, jnp.maximum(jnp.sum(real, axis=1, keepdims=True) - 1, 0))
        found = jnp.take_along_axis(ids, place, axis=1).reshape(groups, num_sampled)
        found = jnp.clip(found, 0, jnp.maximum(state.num_valid - 1, 0))
        drawn = Candidates(found, jnp.zeros(found.shape, jnp.float32), jnp.ones(found.shape, bool), draw=f)
        return Candidates(found, log_expected_count(state, drawn, found, query), drawn.mask, f)

    def log_expected_count(
        state: KernelTree, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del query
        f = candidates.draw
        possible = ids < state.num_valid
        x = state.projected[jnp.where(possible, ids, 0)]
        of_root = jnp.sum(f * state.sums[1], axis=1, keepdims=True)
        chance = jnp.maximum(made.weights(state.tables, f, x), jnp.finfo(jnp.float32).tiny) / of_root
        return jnp.where(possible, jnp.log(num_sampled) + jnp.log(chance), -jnp.inf).astype(jnp.float32)

    def update(state: KernelTree, key: KeyArray, query: Query, row_ids: Array, rows: Array) -> KernelTree:
        del key
        number = row_ids.shape[0]
        depth, stride = _shape(state.projected.shape[0], leaf_size)
        # Indices out of range, all different.
        nowhere = jnp.int32(1 << 30) + jnp.arange(number, dtype=jnp.int32)
        real = row_ids < state.num_valid
        x = project(rows, state.projection, query.classes.normalized)
        at = jnp.where(real, row_ids.astype(jnp.int32), nowhere)
        projected = state.projected.at[at].set(x, mode="drop", unique_indices=True)
        leaf = row_ids.astype(jnp.int32) // stride
        first = starts_of_runs(leaf)
        node = jnp.where(real & first, leaf, 0)
        _, members, valid = of_leaves(projected, node, stride, state.num_valid)
        new = made.summed(state.tables, members, valid)
        node = jnp.where(real & first, node + (1 << depth), 0)
        sums = state.sums.at[jnp.where(node > 0, node, nowhere)].set(new, mode="drop", unique_indices=True)

        def up(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            sums, node = carry
            # Two children of one parent write the same sum twice.
            node = node // 2
            new = sums[2 * node] + sums[2 * node + 1]
            return sums.at[jnp.where(node > 0, node, nowhere)].set(new, mode="drop"), node

        sums, _ = jax.lax.fori_loop(0, depth, up, (sums, node))
        return KernelTree(state.projection, state.tables, projected, sums, state.num_valid)

    facts = Facts(covers_all=True, draw_independent=True, with_replacement=True, alike=True, of_batch=num_groups == 1)
    return Sampler(build, sample, log_expected_count, update, built_anew(build), schedule_of(schedule), facts)


def _right(key: KeyArray, left: Float[Array, "..."], right: Float[Array, "..."]) -> Int[Array, "..."]:
    """1 with probability right / (left + right), else 0."""
    smaller = (right < left).astype(jnp.int32)
    least, most = jnp.minimum(left, right), jnp.maximum(left, right)
    # Compared with the smaller mass: near 0, floats are fine enough for small chances.
    bits = jax.random.bits(key, left.shape, jnp.uint32).astype(jnp.float32)
    taken = (bits + 0.5) * 2.0**-32 * (most + least) < least
    return jnp.where(taken, smaller, 1 - smaller)


def _by_weight(key: KeyArray, weights: Float[Array, "rows n"]) -> Int[Array, "rows 1"]:
    """A place of each row by weight: by halves too, as a running sum would lose what is 2^-24 of the largest."""
    short = (1 << (weights.shape[1] - 1).bit_length()) - weights.shape[1]
    sums = [jnp.pad(weights, ((0, 0), (0, short)))]
    while sums[-1].shape[1] > 1:
        sums.append(sums[-1][:, 0::2] + sums[-1][:, 1::2])
    place = jnp.zeros((weights.shape[0], 1), jnp.int32)
    for level in reversed(range(len(sums) - 1)):
        left, right = (jnp.take_along_axis(sums[level], 2 * place + side, axis=1) for side in (0, 1))
        place = 2 * place + _right(jax.random.fold_in(key, level), left, right)
    return place


def _shape(num_classes: int, leaf_size: int) -> tuple[int, int]:
    """The depth of the tree, which has 2^depth leaves, and the number of classes per leaf."""
    depth = max(0, (-(-num_classes // leaf_size) - 1).bit_length())
    return depth, max(1, -(-num_classes // (1 << depth)))


def _principal(classes: Classes, rank: int) -> Float[Array, "dim rank"]:
    """The directions in which the class vectors are longest, or all coordinates."""
    dim = classes.vectors.shape[1]
    if rank == dim:
        return jnp.eye(dim)

    def add(moments: Float[Array, "dim dim"], block: Block) -> Float[Array, "dim dim"]:
        rows = jnp.where(block.fresh[:, None], block.vectors.astype(jnp.float32), 0.0)
        return moments + rows.T @ rows

    empty = jnp.zeros((dim, dim))
    moments = walk(classes, jnp.dtype(jnp.float32), add, empty, block_size=DEFAULT_BLOCK_SIZE)
    _, directions = jnp.linalg.eigh(moments)
    return directions[:, ::-1][:, :rank]
