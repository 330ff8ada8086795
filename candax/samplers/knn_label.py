"""Neighbours of the labels: the classes whose vectors are nearest to the true class's own vector, found exactly."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import (
    Candidates,
    Classes,
    Facts,
    KeyArray,
    Query,
    Retriever,
    Sampler,
    State,
    never,
    no_follow,
    no_update,
)
from candax.blocks import DEFAULT_BLOCK_SIZE, streaming_top_k
from candax.checks import check_positive, checked
from candax.samplers.common.found import EMPTY, distinct, is_found, or_empty
from candax.samplers.common.groups import count_groups
from candax.samplers.common.schedules import built_anew, schedule_of
from candax.samplers.common.scoring import best_of
from candax.samplers.common.shares import divisible

# The neighbours of so many classes are looked for at a time.
_QUERIES = 1024


class _Neighbours(NamedTuple):
    """The static numbers of a graph of neighbours, and what can be done with it; see ``knn_label``."""

    num_neighbours: int
    from_graph: bool
    block_size: int

    def nearest(self, classes: Classes, ids: Int[Array, " n"]) -> Int[Array, "n k"]:
        """The nearest other classes of each id; -1 where there are no more."""
        by_cosine = dataclasses.replace(classes, biases=None, normalized=True)
        vectors = jnp.where((ids < classes.num_valid)[:, None], classes.vectors[ids], 0)
        scores, found = streaming_top_k(vectors, by_cosine, self.num_neighbours + 1, block_size=self.block_size)
        found = jnp.where((scores > -jnp.inf) & (found != ids[:, None]), found, -1)
        # A class need not be among its own k + 1 nearest: of equal vectors, those of lower ids come first.
        itself_last = jnp.argsort(found < 0, axis=1, stable=True)
        return jnp.take_along_axis(found, itself_last[:, : self.num_neighbours], axis=1)

    def build(self, key: KeyArray, classes: Classes) -> State:
        """The neighbours of every class, if a graph is kept."""
        del key
        if not self.from_graph:
            return ()
        size = min(_QUERIES, classes.num_classes)
        blocks = -(-classes.num_classes // size)
        ids = jnp.minimum(jnp.arange(blocks * size, dtype=jnp.int32), classes.num_classes - 1).reshape(blocks, size)
        graph = jax.lax.map(lambda some: self.nearest(classes, some), ids)
        return graph.reshape(-1, self.num_neighbours)[: classes.num_classes]

    def found(self, state: State, query: Query) -> Int[Array, "B n"]:
        """The labels of each example and their neighbours, with repeats; -1 where there is none."""
        labels = query.labels.reshape(-1)
        at = jnp.maximum(labels, 0)
        of_label = state[at] if self.from_graph else self.nearest(query.classes, at)
        found = jnp.concatenate([labels[:, None], jnp.where(labels[:, None] >= 0, of_label, -1)], axis=1)
        return found.reshape(query.labels.shape[0], query.labels.shape[1] * found.shape[1])

    def search(self, state: State, query: Query, k: int) -> tuple[Array, Array]:
        """The k of largest logit among the labels and their neighbours."""
        return best_of(query, distinct(or_empty(self.found(state, query))).ids, k)


@checked
@divisible("num_neighbours")
def label_index(num_neighbours: int, *, from_graph: bool = True, block_size: int = DEFAULT_BLOCK_SIZE) -> Retriever:
    """The retriever of ``knn_label``: each example's labels and their nearest other classes, ranked by logit.

    Args:
        num_neighbours: how many, of each label.
        from_graph: True: keep a graph of neighbours, which changes at refreshes only; False: find them in every search.
        block_size: the most classes scored at a time.

    Returns:
        A ``Retriever``; a search without labels finds nothing.

    Raises:
        ValueError: if a number is not positive.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> vectors = jnp.array([[1.0, 0.0], [5.0, 0.5], [0.0, 1.0], [-1.0, 0.0]])
        >>> query = cx.Query(jnp.ones((1, 2)), jnp.array([[0]]), cx.Classes(vectors))
        >>> index = cx.samplers.label_index(1)
        >>> state = index.build(jax.random.key(0), query.classes)
        >>> [found.tolist() for found in index.search(state, query, 3)]
        [[[5.5, 1.0, -inf]], [[1, 0, 0]]]
    """
    check_positive("num_neighbours", num_neighbours)
    check_positive("block_size", block_size)
    index = _Neighbours(num_neighbours, from_graph, block_size)
    return Retriever(index.build, index.search, no_follow, built_anew(index.build), "labels")


@checked
@divisible("k")
def knn_label(
    k: int,
    *,
    num_groups: int | None = None,
    from_graph: bool = True,
    schedule: int | Callable[[int], bool] = never,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> Sampler:
    """The labels of a group's examples and the k nearest other classes of each: KNN softmax.

    The nearest classes are those of largest cosine between class vectors; lengths and biases play no part. The set is
    the union over the group's labels; a class that is a neighbour of several labels stands in it once, and the slots of
    repeats are masked (S = (k + 1) * labels slots per group). Every member has expected count 1: the choice is
    deterministic, nothing corrects for the classes outside, and the paper trains with ``losses.subset_softmax``.

    Cost, with n classes: with ``from_graph`` the state is the graph, 4 n k bytes, as of the last refresh; building it
    scores all pairs, O(n^2 dim) time with ``[1024, block_size]`` logits at a time, so choose a ``schedule`` of an epoch
    or so. A draw then reads k ids per label. Without the graph every draw scores all classes, O(labels n dim): always
    up to date and without memory; cheaper where fewer than n labels are seen between two refreshes.

    Args:
        k: neighbours per label. Those in excess of the other valid classes are masked.
        num_groups: G, groups per batch (1: one shared set); None: one set per example.
        from_graph: True: keep a graph of neighbours; False: find them in every draw.
        schedule: when the loop rebuilds the graph: every so many steps, or ``(step) -> bool``.
        block_size: the most classes scored at a time.

    Returns:
        A ``Sampler``.

    Raises:
        ValueError: if a number is not positive, or when a batch cannot be cut into ``num_groups`` groups.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> vectors = jnp.array([[1.0, 0.0], [5.0, 0.5], [0.0, 1.0], [-1.0, 0.0]])
        >>> classes = cx.Classes(vectors, None, None, jnp.int32(4))
        >>> sampler = cx.samplers.knn_label(1)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.zeros((2, 2)), jnp.array([[0], [2]]), classes)
        >>> sampler.sample(state, jax.random.key(1), query).ids.tolist()
        [[0, 1], [1, 2]]

    Source: Song et al., Large-Scale Training System for 100-Million Classification at Alibaba (2020), as described by
        Zhao et al., ANN Softmax (PVLDB 2022), section 2.2.2.
    """
    check_positive("k", k)
    check_positive("num_groups", num_groups, optional=True)
    check_positive("block_size", block_size)
    index = _Neighbours(k, from_graph, block_size)

    def sample(state: State, key: KeyArray, query: Query) -> Candidates:
        del key
        # No order is needed here, so nothing is scored.
        ids = distinct(or_empty(index.found(state, query)).reshape(count_groups(num_groups, query), -1)).ids
        return Candidates(jnp.where(ids == EMPTY, 0, ids), jnp.zeros(ids.shape, jnp.float32), ids != EMPTY, draw=ids)

    def log_expected_count(
        state: State, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del state, query
        return jnp.where(is_found(candidates.draw, ids), jnp.float32(0), -jnp.inf)

    facts = Facts(covers_all=False, draw_independent=True, with_replacement=False, of_batch=num_groups == 1)
    return Sampler(
        index.build, sample, log_expected_count, no_update, built_anew(index.build), schedule_of(schedule), facts
    )
