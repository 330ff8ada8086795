"""A generator that learns, while the model trains, in which clusters of classes the labels of an embedding lie."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree, UInt32

from candax.base import Candidates, Classes, Facts, KeyArray, Query, Sampler, never, pytree
from candax.blocks import DEFAULT_BLOCK_SIZE, Block, walk
from candax.checks import check_positive, checked
from candax.samplers.combinators import every
from candax.samplers.common.groups import count_groups
from candax.samplers.common.kmeans import Points, kmeans, nearest, rows_at_once
from candax.samplers.common.shares import divisible
from candax.samplers.common.thresholds import check_counts, integer_thresholds, random_below
from candax.samplers.lsh.schedules import exponential_schedule


@pytree
class Clusters:
    """Which class is in which cluster, and with which weight: classes in the order of their clusters.

    Attributes:
        order: the class at each place.
        places: the place of each class.
        assigned: the cluster of each class; padding rows have one too, and no weight.
        thresholds: running sums of the integer weights of the classes, by place.
        ends: the running sum at the end of each cluster.
    """

    order: Int[Array, " num_classes"]
    places: Int[Array, " num_classes"]
    assigned: Int[Array, " num_classes"]
    thresholds: UInt32[Array, " num_classes"]
    ends: UInt32[Array, " clusters"]


@pytree
class Generator:
    """Clusters, and a linear classifier over them that is trained by Adam."""

    clusters: Clusters
    params: tuple[Float[Array, "dim clusters"], Float[Array, " clusters"]]
    optimizer: PyTree
    num_valid: Int[Array, ""]


@checked
@divisible("num_sampled")
def learned_clusters(
    num_sampled: int,
    *,
    num_clusters: int = 256,
    power: float = 0.75,
    smoothing: float = 1.0,
    static_share: float = 0.1,
    learning_rate: float = 1e-2,
    schedule: int | Callable[[int], bool] | None = None,
    num_groups: int | None = 1,
) -> Sampler:
    """Classes of the clusters that a small trained generator expects for an embedding, by frequency within a cluster.

    q(c | e) = Q(k | e) u(c) / u(k) for a class c of cluster k, with u(c) ~ (counts(c) + smoothing)^power, u(k) its sum
    over the cluster and

        Q(k | e) = share u(k) + (1 - share) softmax_k(e . W_k + b_k + log u(k)).

    A group draws from the mean of its examples' distributions; the expected count is S times that, exactly: what is
    reported is what is drawn.

    Each ``update`` is a step of Adam on the generator's cross entropy of the labels' clusters. It is an adversary: to a
    model that must tell labels from candidates the hardest candidates are those distributed like labels, and that is
    what the cross entropy makes of q. So a loss must correct for q (``nce``, ``css``, ``sampled_softmax``): under
    ``negative_sampling`` the logits tend to log(p / q) - log k, and nothing would be left to learn.

    ``refresh`` makes clusters anew, by k-means on the directions of the class vectors, and starts the generator again
    from W_k = the mean class vector of cluster k and b = 0. Where class vectors are all zero there is one cluster, and
    draws are by frequency until the first refresh.

    Cost: a draw and an update take O(B dim num_clusters) operations and O(log num_classes) a candidate; the state
    16 bytes per class and 12 dim num_clusters.

    Args:
        num_sampled: S, candidates per group.
        num_clusters: how many clusters.
        power: of the frequencies within a cluster.
        smoothing: added to every count before the power, above 0, so that every class can be drawn.
        static_share: the share of draws by frequency alone; it bounds the weights of what the generator neglects.
        learning_rate: of the generator.
        schedule: when to make clusters anew: every so many steps, or ``(step) -> bool``. None: after 50
            steps, then exponentially rarer, see ``exponential_schedule``.
        num_groups: G, groups per batch (1: one shared set); None: one set per example.

    Returns:
        A ``Sampler``; its state is a ``Generator``. Without counts in ``Classes`` all classes weigh the same.

    Raises:
        ValueError: for numbers out of range; in ``init`` for invalid counts.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> vectors = jnp.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> classes = cx.Classes(vectors, None, None, jnp.int32(4))
        >>> sampler = cx.samplers.learned_clusters(num_sampled=8, num_clusters=2, learning_rate=0.1)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.array([[1.0, 0.0]]), jnp.array([[2]]), classes)
        >>> for step in range(50):
        ...     state = sampler.update(state, jax.random.key(step), query, jnp.array([2]), vectors[2:3])
        >>> candidates = sampler.sample(state, jax.random.key(1), query)
        >>> counts = jnp.exp(sampler.log_expected_count(state, candidates, jnp.arange(4)[None], query)[0])
        >>> bool(counts[2] > 3), bool(counts[0] < 0.5), round(float(counts.sum()), 3)
        (True, True, 8.0)

    Source: Bamler and Mandt, Extreme Classification via Adversarial Softmax Approximation (2020), whose generator is a
        tree of binary decisions fitted once, before training; clusters and their schedule are ours.
    """
    check_positive("num_sampled", num_sampled)
    check_positive("num_clusters", num_clusters)
    check_positive("num_groups", num_groups, optional=True)
    for name, value in (("power", power), ("smoothing", smoothing), ("learning_rate", learning_rate)):
        if not (value >= 0 if name == "power" else value > 0) or not value < float("inf"):
            raise ValueError(f"expected a finite {name} {'>=' if name == 'power' else '>'} 0, got {value!r}.")
    if not 0 < static_share <= 1:
        raise ValueError(f"expected 0 < static_share <= 1, got {static_share!r}: without it weights have no bound.")
    adam = optax.adam(learning_rate)

    def weights(classes: Classes) -> Float[Array, " num_classes"]:
        valid = jnp.arange(classes.num_classes) < classes.num_valid
        if classes.counts is None:
            return valid.astype(jnp.float32)
        counts = jnp.where(valid, classes.counts.astype(jnp.float32) + smoothing, 0.0)
        # What underflows keeps a chance, as in ``unigram``.
        found = jnp.maximum((counts / jnp.max(counts)) ** power, jnp.finfo(jnp.float32).tiny)
        return jnp.where(valid, found, 0.0)

    @jax.jit
    def build(key: KeyArray, classes: Classes) -> Generator:
        dim = classes.vectors.shape[1]

        def take(ids: Int[Array, " n"]) -> Float[Array, "n dim"]:
            return classes.vectors[ids].astype(jnp.float32)

        points = Points(take, jnp.maximum(classes.num_valid, 1), classes.num_classes)
        centers = kmeans(key, points, num_clusters)

        def assign(carry: tuple[Array, Array, Array], block: Block) -> tuple[Array, Array, Array]:
            assigned, sums, members = carry
            vectors = block.vectors.astype(jnp.float32)
            which, _ = nearest(centers, vectors)
            member = jax.nn.one_hot(jnp.where(block.fresh, which, num_clusters), num_clusters, dtype=jnp.float32)
            assigned = jax.lax.dynamic_update_slice_in_dim(assigned, which, block.start, axis=0)
            return assigned, sums + member.T @ vectors, members + jnp.sum(member, axis=0)

        begin = (
            jnp.zeros(classes.num_classes, jnp.int32),
            jnp.zeros((num_clusters, dim)),
            jnp.zeros(num_clusters),
        )
        block_size = min(rows_at_once(num_clusters), DEFAULT_BLOCK_SIZE)
        assigned, sums, members = walk(classes, jnp.dtype(jnp.float32), assign, begin, block_size=block_size)
        means = sums / jnp.maximum(members, 1.0)[:, None]
        params = (means.T, jnp.zeros(num_clusters))
        found = _arrange(assigned, weights(classes), num_clusters)
        return Generator(found, params, adam.init(params), classes.num_valid.astype(jnp.int32))

    def init(key: KeyArray, classes: Classes) -> Generator:
        if classes.counts is not None:
            check_counts(classes.counts, "learned_clusters")
        return build(key, classes)

    def logits(params: PyTree, clusters: Clusters, embeddings: Float[Array, "B dim"]) -> Float[Array, "B clusters"]:
        into, bias = params
        return embeddings.astype(jnp.float32) @ into + bias + jnp.log(_mass(clusters))

    def cluster_thresholds(state: Generator, query: Query) -> UInt32[Array, "G clusters"]:
        learned = jax.nn.softmax(logits(state.params, state.clusters, query.embeddings), axis=1)
        groups = count_groups(num_groups, query)
        mean = jnp.mean(learned.reshape(groups, -1, num_clusters), axis=1)
        return jax.vmap(integer_thresholds)(static_share * _mass(state.clusters) + (1 - static_share) * mean)

    def sample(state: Generator, key: KeyArray, query: Query) -> Candidates:
        thresholds = cluster_thresholds(state, query)
        shape = (thresholds.shape[0], num_sampled)
        key_cluster, key_class = jax.random.split(key)
        place = random_below(key_cluster, shape, thresholds[:, -1:])
        which = jax.vmap(lambda edges, u: jnp.searchsorted(edges, u, side="right"))(thresholds, place)
        begin, units = _span(state.clusters.ends, which)
        place = begin + random_below(key_class, shape, units)
        ids = state.clusters.order[jnp.searchsorted(state.clusters.thresholds, place, side="right")]
        drawn = Candidates(ids, jnp.zeros(shape), jnp.ones(shape, bool), draw=thresholds)
        return Candidates(ids, log_expected_count(state, drawn, ids, query), drawn.mask, thresholds)

    def log_expected_count(
        state: Generator, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del query
        clusters, thresholds = state.clusters, candidates.draw
        which = clusters.assigned[ids]
        begin_cluster = jnp.where(which > 0, jnp.take_along_axis(thresholds, jnp.maximum(which - 1, 0), axis=1), 0)
        of_cluster = jnp.take_along_axis(thresholds, which, axis=1) - begin_cluster
        _, in_cluster = _span(clusters.ends, which)
        _, of_class = _span(clusters.thresholds, clusters.places[ids])
        log = (jnp.log(units.astype(jnp.float32)) for units in (of_cluster, thresholds[:, -1:], of_class, in_cluster))
        of_cluster, of_all, of_class, in_cluster = log
        count = jnp.log(num_sampled) + of_cluster - of_all + of_class - in_cluster
        return jnp.where(ids < state.num_valid, count, -jnp.inf)

    def update(state: Generator, key: KeyArray, query: Query, row_ids: Array, rows: Array) -> Generator:
        del key, row_ids, rows
        real = (query.labels >= 0) & (query.labels < state.num_valid)
        which = state.clusters.assigned[jnp.where(real, query.labels, 0)]
        # An example counts once, whatever its number of labels; one without labels not at all.
        share = real / jnp.maximum(jnp.sum(real, axis=1, keepdims=True), 1) / jnp.maximum(jnp.sum(real.any(1)), 1)

        def cross_entropy(params: PyTree) -> Float[Array, ""]:
            log_learned = jax.nn.log_softmax(logits(params, state.clusters, query.embeddings), axis=1)
            return -jnp.sum(share * jnp.take_along_axis(log_learned, which, axis=1))

        moves, optimizer = adam.update(jax.grad(cross_entropy)(state.params), state.optimizer)
        return Generator(state.clusters, optax.apply_updates(state.params, moves), optimizer, state.num_valid)

    def refresh(state: Generator, key: KeyArray, classes: Classes) -> Generator:
        del state
        return build(key, classes)

    facts = Facts(covers_all=True, draw_independent=True, with_replacement=True)
    alone = Sampler(init, sample, log_expected_count, update, refresh, never, facts)
    return every(alone, exponential_schedule() if schedule is None else schedule)


def _arrange(
    assigned: Int[Array, " num_classes"], weights: Float[Array, " num_classes"], num_clusters: int
) -> Clusters:
    order = jnp.argsort(assigned, stable=True).astype(jnp.int32)
    places = jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0], dtype=jnp.int32), unique_indices=True)
    thresholds = integer_thresholds(weights[order])
    end = jnp.searchsorted(assigned[order], jnp.arange(num_clusters, dtype=jnp.int32), side="right")
    ends = jnp.where(end > 0, thresholds[jnp.maximum(end - 1, 0)], 0)
    return Clusters(order, places, assigned, thresholds, ends)


def _mass(clusters: Clusters) -> Float[Array, " clusters"]:
    """The share of each cluster in all draws by frequency."""
    units = jnp.diff(clusters.ends, prepend=jnp.uint32(0))
    return units.astype(jnp.float32) / clusters.ends[-1].astype(jnp.float32)


def _span(thresholds: UInt32[Array, " n"], which: Int[Array, "..."]) -> tuple[Array, Array]:
    """Where the units of an entry begin, and how many they are."""
    begin = jnp.where(which > 0, thresholds[jnp.maximum(which - 1, 0)], 0)
    return begin, thresholds[which] - begin
