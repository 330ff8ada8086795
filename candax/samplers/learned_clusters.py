"""A generator that learns, while the model trains, in which clusters of classes the labels of an embedding lie."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree, UInt32

from candax.base import Candidates, Classes, Facts, KeyArray, Query, Sampler, pytree
from candax.blocks import DEFAULT_BLOCK_SIZE, Block, walk
from candax.checks import check_positive, checked
from candax.samplers.common.clusters import Clusters, arrange, draw_classes, frequencies, log_share, mass
from candax.samplers.common.groups import count_groups, mean_of_groups
from candax.samplers.common.kmeans import Points, kmeans, nearest, rows_at_once
from candax.samplers.common.schedules import built_anew, schedule_of
from candax.samplers.common.shares import divisible
from candax.samplers.common.thresholds import check_counts, integer_thresholds


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
    """Draws classes of the clusters that a small trained generator expects for an embedding, by frequency within these.

    q(c | e) = Q(k | e) u(c) / u(k) for a class c of cluster k, with u(c) ~ (counts(c) + smoothing)^power, u(k) its sum
    over the cluster, share = ``static_share`` and

        Q(k | e) = share u(k) + (1 - share) softmax_k(e . W_k + b_k + log u(k)).

    A group draws from the mean of its examples' distributions, without those that have no label where others do
    (padding); the expected count is S times that, exactly: what is reported is what is drawn.

    Each ``update`` is a step of Adam on the generator's cross entropy of the labels' clusters. The generator is an
    adversary: for a model that must tell labels from candidates, the hardest candidates are distributed like labels,
    and the cross entropy makes q such a distribution. So a loss must correct for q (``nce``, ``css``,
    ``sampled_softmax``): under ``negative_sampling`` with k negatives the logits tend to log(p / q) - log k, and
    nothing would be left to learn.

    ``refresh`` makes clusters anew, by k-means on the directions of the class vectors, and starts the generator again
    from W_k = the mean class vector of cluster k and b = 0. Where class vectors are all zero there is one cluster, and
    draws are by frequency until the first refresh.

    Cost: a draw and an update take O(B dim num_clusters) operations and O(log num_classes) per candidate; the state
    takes 16 bytes per class and 12 dim num_clusters bytes.

    Args:
        num_sampled: S, candidates per group.
        num_clusters: how many clusters.
        power: of the frequencies within a cluster.
        smoothing: added to every count before the power, above 0, so that every class can be drawn.
        static_share: the share of draws by frequency alone; it bounds the weights of classes the generator neglects.
        learning_rate: of the generator.
        schedule: when to make clusters anew: every so many steps, or ``(step) -> bool``. None: after 50 steps, then
            exponentially less often, see ``exponential_schedule``.
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
        if not (value >= 0 if name == "power" else value > 0):
            raise ValueError(f"expected a finite {name} {'>=' if name == 'power' else '>'} 0, got {value!r}.")
    if not 0 < static_share <= 1:
        raise ValueError(f"expected 0 < static_share <= 1, got {static_share!r}: without it weights have no bound.")
    adam = optax.adam(learning_rate)

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
        found = arrange(assigned, frequencies(classes, power, smoothing), num_clusters)
        return Generator(found, params, adam.init(params), classes.num_valid.astype(jnp.int32))

    def init(key: KeyArray, classes: Classes) -> Generator:
        if classes.counts is not None:
            check_counts(classes.counts, "learned_clusters", may_be_zero=True)
        return build(key, classes)

    def logits(params: PyTree, clusters: Clusters, embeddings: Float[Array, "B dim"]) -> Float[Array, "B clusters"]:
        into, bias = params
        return embeddings.astype(jnp.float32) @ into + bias + jnp.log(mass(clusters))

    def cluster_thresholds(state: Generator, query: Query) -> UInt32[Array, "G clusters"]:
        learned = jax.nn.softmax(logits(state.params, state.clusters, query.embeddings), axis=1)
        mean = mean_of_groups(learned, query, count_groups(num_groups, query))
        return jax.vmap(integer_thresholds)(static_share * mass(state.clusters) + (1 - static_share) * mean)

    def sample(state: Generator, key: KeyArray, query: Query) -> Candidates:
        thresholds = cluster_thresholds(state, query)
        ids = draw_classes(state.clusters, thresholds, key, num_sampled)
        drawn = Candidates(ids, jnp.zeros(ids.shape, jnp.float32), jnp.ones(ids.shape, bool), draw=thresholds)
        return Candidates(ids, log_expected_count(state, drawn, ids, query), drawn.mask, thresholds)

    def log_expected_count(
        state: Generator, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del query
        count = jnp.log(num_sampled) + log_share(state.clusters, candidates.draw, ids)
        return jnp.where(ids < state.num_valid, count, -jnp.inf)

    def update(state: Generator, key: KeyArray, query: Query, row_ids: Array, rows: Array) -> Generator:
        del key, row_ids, rows
        real = (query.labels >= 0) & (query.labels < state.num_valid)
        which = state.clusters.assigned[jnp.where(real, query.labels, 0)]
        # An example counts once, whatever its number of labels; one without labels not at all.
        number, examples = jnp.sum(real, axis=1, keepdims=True), jnp.sum(real.any(1))
        share = real.astype(float) / jnp.maximum(number, 1).astype(float) / jnp.maximum(examples, 1).astype(float)

        def cross_entropy(params: PyTree) -> Float[Array, ""]:
            log_learned = jax.nn.log_softmax(logits(params, state.clusters, query.embeddings), axis=1)
            return -jnp.sum(share * jnp.take_along_axis(log_learned, which, axis=1))

        grads = jax.grad(cross_entropy)(state.params)
        moves, optimizer = adam.update(grads, state.optimizer)
        # A batch without labels, or whose embeddings are not finite, teaches nothing.
        told = real.any() & jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads)]))
        old, new = (state.params, state.optimizer), (optax.apply_updates(state.params, moves), optimizer)
        params, optimizer = jax.tree.map(lambda new, old: jnp.where(told, new, old), new, old)
        return Generator(state.clusters, params, optimizer, state.num_valid)

    facts = Facts(covers_all=True, draw_independent=True, with_replacement=True, alike=True, of_batch=num_groups == 1)
    return Sampler(init, sample, log_expected_count, update, built_anew(build), schedule_of(schedule), facts)
