"""Inverted multi-index: classes lie in K x K cells of two codewords and are drawn by an embedding's codeword scores."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from candax.base import Candidates, Classes, Facts, KeyArray, Query, Sampler, no_update, pytree
from candax.blocks import DEFAULT_BLOCK_SIZE, Block, walk
from candax.checks import check_positive, checked
from candax.cosines import as_scored
from candax.samplers.common.clusters import Clusters, arrange, draw_classes, frequencies, log_share, mass
from candax.samplers.common.groups import count_groups, counting
from candax.samplers.common.kmeans import Points, kmeans, nearest, rows_at_once
from candax.samplers.common.schedules import built_anew, schedule_of
from candax.samplers.common.shares import divisible
from candax.samplers.common.thresholds import check_counts, integer_thresholds

# Codeword scores are cut this far below the best one, so that the chances of cells stay within float32.
_REACH = 25.0


@pytree
class MultiIndex:
    """Two lists of codewords, and which class is in which of the K * K cells.

    Attributes:
        codewords: of the first and of the second list, as wide as a class vector (and a bias, where there are biases).
        cells: cell k1 * K + k2 holds the classes with codewords k1 and k2.
        num_valid: classes that can be drawn.
    """

    codewords: Float[Array, "2 codewords width"]
    cells: Clusters
    num_valid: Int[Array, ""]


@checked
@divisible("num_sampled")
def midx(
    num_sampled: int,
    *,
    num_codewords: int = 64,
    codes: Literal["product", "residual"] = "product",
    power: float = 0.0,
    smoothing: float = 1.0,
    scale: float = 1.0,
    schedule: int | Callable[[int], bool] | None = None,
    num_groups: int | None = None,
    num_iterations: int = 10,
    points_per_codeword: int = 64,
) -> Sampler:
    """Classes nearly in proportion to their softmax, by codewords of their vectors: the multi-index sampler MIDX.

    Every class vector w is approximated by the sum of two codewords, a of the first list and b of the second, K each.
    For an embedding e and a class c in the cell (k1, k2), with u(c) ~ (counts(c) + smoothing)^power and
    u(k1, k2) the sum over the cell,

        q(c | e) = Q(k1, k2 | e) u(c) / u(k1, k2),    Q(k1, k2 | e) ~ exp(scale e . (a_k1 + b_k2)) u(k1, k2).

    This is the same as drawing k1 by its score and the mass of its cells, then k2 given k1, then a class of the cell;
    here k1 and k2 are drawn together. A group draws from the mean of its examples' distributions, without those that
    have no label where others do (padding). The expected count is S times that, exactly and for every class, because
    what is drawn is reported, in multiples of about 2^-32: stale or coarse codewords make worse candidates, never wrong
    counts.

    Cells change at a refresh only: k-means on at most ``points_per_codeword * K`` classes makes the codewords, and each
    class goes to its nearest ones. Classes are stored in the order of their cells, so a single class cannot move: rows
    that change between refreshes keep their cells. Codeword scores are cut 25 below the best, so that no class is left
    out. Where the layer has biases, they are one more coordinate of what is quantised.

    Cost: O(K dim + K^2) per example for the distribution over the cells, memory for K^2 numbers per group, and
    O(log K + log num_classes) per draw; nothing else grows with num_classes. A refresh takes O(num_classes K dim).

    Args:
        num_sampled: S, candidates per group.
        num_codewords: K, in each list.
        codes: "product": the first codewords approximate the first half of the coordinates, the second ones the second
            half; "residual": the second codewords approximate what the first ones leave over.
        power: of the frequencies within and between cells; 0 weighs all classes alike and needs no counts.
        smoothing: added to every count before the power, above 0, so that every class can be drawn.
        scale: what a margin multiplies logits by, where these are cosines.
        schedule: when to refresh: every so many steps, or ``(step) -> bool``. None: after 50 steps, then exponentially
            rarer, see ``exponential_schedule``.
        num_groups: G, groups per batch (1: one shared set); None: one set per example.
        num_iterations: of k-means.
        points_per_codeword: bounds the classes that an iteration of k-means looks at.

    Returns:
        A ``Sampler``; its state is a ``MultiIndex`` of 16 bytes per class, 4 K^2 and 8 K dim bytes.

    Raises:
        ValueError: for numbers out of range; in ``init``, with a power, without valid counts.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> vectors = jnp.array([[3.0, 0.0], [2.9, 0.1], [0.0, 3.0], [0.0, 2.8]])
        >>> classes = cx.Classes(vectors)
        >>> sampler = cx.samplers.midx(8, num_codewords=2)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[0], [2]]), classes)
        >>> candidates = sampler.sample(state, jax.random.key(1), query)
        >>> ids = jnp.broadcast_to(jnp.arange(4), (2, 4))
        >>> counts = jnp.exp(sampler.log_expected_count(state, candidates, ids, query))
        >>> (counts > 3).tolist(), [round(float(x), 3) for x in counts.sum(1)]
        ([[True, True, False, False], [False, False, True, True]], [8.0, 8.0])

    Source: Chen et al., Adaptive Sampled Softmax with Inverted Multi-Index (arXiv 2501.08563), and Fast Variational
        AutoEncoder with Inverted Multi-Index for Collaborative Filtering (WWW 2022); "MIDX-uni" is power 0,
        "MIDX-pop" a power above 0. The mean over a group is ours.
    """
    check_positive("num_sampled", num_sampled)
    check_positive("num_codewords", num_codewords)
    check_positive("num_iterations", num_iterations)
    check_positive("points_per_codeword", points_per_codeword)
    check_positive("num_groups", num_groups, optional=True)
    for name, real in (("power", power), ("smoothing", smoothing), ("scale", scale)):
        if not (real >= 0 if name == "power" else real > 0):
            raise ValueError(f"expected a finite {name} {'>=' if name == 'power' else '>'} 0, got {real!r}.")
    if num_codewords > 1024:
        raise ValueError(f"expected at most 1024 codewords, so 2^20 cells per group, got {num_codewords}.")

    @jax.jit
    def build(key: KeyArray, classes: Classes) -> MultiIndex:
        def take(ids: Int[Array, " n"]) -> Float[Array, "n width"]:
            vectors = as_scored(classes.vectors[ids].astype(jnp.float32), classes.normalized)
            return _with_bias(vectors, None if classes.biases is None else classes.biases[ids])

        def learn(key: KeyArray, take: Callable[[Int[Array, " n"]], Array]) -> Float[Array, "codewords width"]:
            points = Points(take, jnp.maximum(classes.num_valid, 1), classes.num_classes)
            return kmeans(
                key,
                points,
                num_codewords,
                num_iterations=num_iterations,
                points_per_center=points_per_codeword,
                spherical=False,
            )

        keys = jax.random.split(key)
        width = classes.vectors.shape[1] + (classes.biases is not None)
        in_first = jnp.arange(width) < (width + 1) // 2

        def rest(rows: Float[Array, "n width"], first: Float[Array, "codewords width"]) -> Float[Array, "n width"]:
            """What the second codewords approximate."""
            if codes == "product":
                return jnp.where(in_first, 0.0, rows)
            return rows - first[nearest(first, rows, spherical=False)[0]]

        first = learn(keys[0], lambda ids: jnp.where(in_first, take(ids), 0.0) if codes == "product" else take(ids))
        second = learn(keys[1], lambda ids: rest(take(ids), first))

        def assign(assigned: Int[Array, " num_classes"], block: Block) -> Int[Array, " num_classes"]:
            biases = None if classes.biases is None else block.biases
            rows = _with_bias(block.vectors.astype(jnp.float32), biases)
            whole = jnp.where(in_first, rows, 0.0) if codes == "product" else rows
            one, _ = nearest(first, whole, spherical=False)
            other, _ = nearest(second, rest(rows, first), spherical=False)
            return jax.lax.dynamic_update_slice_in_dim(assigned, one * num_codewords + other, block.start, axis=0)

        block_size = min(rows_at_once(num_codewords), DEFAULT_BLOCK_SIZE)
        empty = jnp.zeros(classes.num_classes, jnp.int32)
        assigned = walk(classes, jnp.dtype(jnp.float32), assign, empty, block_size=block_size)
        weights = frequencies(classes, power, smoothing)
        cells = arrange(assigned, weights, num_codewords * num_codewords)
        return MultiIndex(jnp.stack([first, second]), cells, classes.num_valid.astype(jnp.int32))

    def init(key: KeyArray, classes: Classes) -> MultiIndex:
        if power > 0:
            check_counts(classes.counts, "midx", may_be_zero=True)
        return build(key, classes)

    def sample(state: MultiIndex, key: KeyArray, query: Query) -> Candidates:
        embeddings = as_scored(query.embeddings.astype(jnp.float32), query.classes.normalized)
        ones = None if query.classes.biases is None else jnp.ones(embeddings.shape[0])
        scores = jnp.einsum("bd,tkd->tbk", scale * _with_bias(embeddings, ones), state.codewords)
        counts = counting(query, count_groups(num_groups, query))
        thresholds = jax.vmap(integer_thresholds)(_chances(scores, mass(state.cells), counts))
        ids = draw_classes(state.cells, thresholds, key, num_sampled)
        drawn = Candidates(ids, jnp.zeros(ids.shape, jnp.float32), jnp.ones(ids.shape, bool), draw=thresholds)
        return Candidates(ids, log_expected_count(state, drawn, ids, query), drawn.mask, thresholds)

    def log_expected_count(
        state: MultiIndex, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del query
        thresholds: UInt32[Array, "G cells"] = candidates.draw
        count = jnp.log(num_sampled) + log_share(state.cells, thresholds, ids)
        return jnp.where(ids < state.num_valid, count, -jnp.inf)

    facts = Facts(covers_all=True, draw_independent=True, with_replacement=True, alike=True, of_batch=num_groups == 1)
    return Sampler(init, sample, log_expected_count, no_update, built_anew(build), schedule_of(schedule), facts)


def _with_bias(rows: Float[Array, "n dim"], biases: Float[Array, " n"] | None) -> Float[Array, "n width"]:
    """Class vectors, or embeddings with ones, such that products of the two are logits."""
    if biases is None:
        return rows
    return jnp.concatenate([rows, biases.astype(jnp.float32)[:, None]], axis=1)


def _chances(
    scores: Float[Array, "2 B codewords"], masses: Float[Array, " cells"], counts: Bool[Array, "groups each"]
) -> Float[Array, "groups cells"]:
    """The mean over each group's examples that count of softmax(first + second score + log mass) over the cells.

    With f and g the exponentials of an example's scores and Z = f M g its sum over the matrix M of masses, the mean of
    f M g / Z is M times one product of matrices per group.
    """
    groups, number = counts.shape[0], scores.shape[2]
    best = jnp.max(scores, axis=2, keepdims=True)
    first, second = jnp.exp(jnp.maximum(scores - best, -_REACH))
    masses = masses.reshape(number, number)
    total = jnp.sum(first * (second @ masses.T), axis=1, keepdims=True)
    # Neither factor of what does not count may be NaN.
    shape = (*counts.shape, number)
    first, second = (jnp.where(counts[:, :, None], part.reshape(shape), 0.0) for part in (first / total, second))
    cells = jnp.einsum("gbk,gbl->gkl", first, second) * masses
    return (cells / jnp.sum(counts, axis=1).astype(cells.dtype)[:, None, None]).reshape(groups, -1)
