"""Classes in the order of their clusters: a cluster is drawn by given chances, a class in it by weight."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from candax.base import Classes, KeyArray, pytree
from candax.samplers.common.thresholds import integer_thresholds, random_below


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


def frequencies(classes: Classes, power: float, smoothing: float) -> Float[Array, " num_classes"]:
    """Weights (counts + smoothing)^power relative to the largest; 1 without counts, 0 for padding rows."""
    valid = jnp.arange(classes.num_classes) < classes.num_valid
    if classes.counts is None:
        return valid.astype(jnp.float32)
    counts = jnp.where(valid, classes.counts.astype(jnp.float32) + smoothing, 0.0)
    # What underflows keeps a chance, as in ``unigram``.
    found = jnp.maximum((counts / jnp.max(counts)) ** power, jnp.finfo(jnp.float32).tiny)
    return jnp.where(valid, found, 0.0)


def draw_classes(
    clusters: Clusters, thresholds: UInt32[Array, "G clusters"], key: KeyArray, num_sampled: int
) -> Int[Array, "G S"]:
    """Draws ``num_sampled`` times for each group: a cluster by integer ``thresholds``, then a class of it by weight."""
    shape = (thresholds.shape[0], num_sampled)
    key_cluster, key_class = jax.random.split(key)
    place = random_below(key_cluster, shape, thresholds[:, -1:])
    which = jax.vmap(lambda edges, u: jnp.searchsorted(edges, u, side="right"))(thresholds, place)
    begin, units = span(clusters.ends, which)
    place = begin + random_below(key_class, shape, units)
    return clusters.order[jnp.searchsorted(clusters.thresholds, place, side="right")]


def log_share(
    clusters: Clusters, thresholds: UInt32[Array, "G clusters"], ids: Int[Array, "G n"]
) -> Float[Array, "G n"]:
    """The log probability that one draw of ``draw_classes`` gives each of the ids, which must have weight."""
    which = clusters.assigned[ids]
    begin_cluster = jnp.where(which > 0, jnp.take_along_axis(thresholds, jnp.maximum(which - 1, 0), axis=1), 0)
    of_cluster = jnp.take_along_axis(thresholds, which, axis=1) - begin_cluster
    _, in_cluster = span(clusters.ends, which)
    _, of_class = span(clusters.thresholds, clusters.places[ids])
    log = (jnp.log(units.astype(jnp.float32)) for units in (of_cluster, thresholds[:, -1:], of_class, in_cluster))
    of_cluster, of_all, of_class, in_cluster = log
    return of_cluster - of_all + of_class - in_cluster


def arrange(assigned: Int[Array, " num_classes"], weights: Float[Array, " num_classes"], num_clusters: int) -> Clusters:
    """Puts classes in the order of their clusters, and of their ids within a cluster."""
    order = jnp.argsort(assigned, stable=True).astype(jnp.int32)
    places = jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0], dtype=jnp.int32), unique_indices=True)
    thresholds = integer_thresholds(weights[order])
    end = jnp.searchsorted(assigned[order], jnp.arange(num_clusters, dtype=jnp.int32), side="right")
    ends = jnp.where(end > 0, thresholds[jnp.maximum(end - 1, 0)], 0)
    return Clusters(order, places, assigned, thresholds, ends)


def mass(clusters: Clusters) -> Float[Array, " clusters"]:
    """The share of each cluster in draws of classes by weight."""
    units = jnp.diff(clusters.ends, prepend=jnp.uint32(0))
    return units.astype(jnp.float32) / clusters.ends[-1].astype(jnp.float32)


def span(thresholds: UInt32[Array, " n"], which: Int[Array, "..."]) -> tuple[Array, Array]:
    """Where the units of an entry begin, and how many there are."""
    begin = jnp.where(which > 0, thresholds[jnp.maximum(which - 1, 0)], 0)
    return begin, thresholds[which] - begin
