"""Random trees over class vectors: built by halving the classes, searched by going down every tree."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Classes, KeyArray, pytree
from candax.blocks import Block, walk
from candax.cosines import as_scored, unit
from candax.runs import starts_of_runs
from candax.samplers.common.found import EMPTY
from candax.samplers.common.keys import Near, class_keys, longest_key, query_keys
from candax.samplers.common.scoring import logits_of
from candax.samplers.common.selection import smallest
from candax.samplers.common.thresholds import random_below

# At most so many numbers of class rows are gathered at a time, by a build and by a search.
_SCRATCH = 1 << 22


@pytree
class ForestState:
    """The trees, all of one shape: node 1 is the root, and node i is halved into nodes 2 i and 2 i + 1.

    Attributes:
        ids: the classes of every leaf, padded with ``EMPTY``.
        pivots: the two classes of each node; its line goes from the second to the first.
        thresholds: at each node, whatever is at least this far along its line goes right.
        longest: the largest length of class vectors, biases included; None unless keys are extended.
    """

    ids: Int[Array, "trees leaves leaf"]
    pivots: Int[Array, "trees leaves 2"]
    thresholds: Float[Array, "trees leaves"]
    longest: Float[Array, ""] | None


class Forest(NamedTuple):
    """The static numbers of a forest, and what can be done with its state; see ``hashing_forest``."""

    num_trees: int
    leaf_size: int
    near: Near

    def depth(self, num_classes: int) -> int:
        """How often classes are halved until no leaf has more than ``leaf_size``."""
        return (-(-num_classes // self.leaf_size) - 1).bit_length()

    def build(self, key: KeyArray, classes: Classes) -> ForestState:
        """Builds random trees over all valid classes, one after the other, sorting the classes once per level.

        Takes O(num_trees * num_classes * dim * depth). Beside the state it needs memory for some arrays [num_classes],
        for 1 / leaf_size of the class table, and for a few million numbers. To be jitted.
        """
        num_classes = classes.num_classes
        depth = self.depth(num_classes)
        longest = longest_key(classes, self.near)
        width = -(-num_classes // (1 << depth))
        at_once = max(128, _SCRATCH // (3 * classes.vectors.shape[1]))

        def along(lines: Float[Array, "nodes width"], node: Int[Array, "num_classes"]) -> Float[Array, "num_classes"]:
            """How far each class is along the line of its node; by id, so that the table is read in its own order."""

            def visit(far: Array, block: Block) -> Array:
                keys = unit(class_keys(block.vectors, block.biases, longest))
                own = lines[jax.lax.dynamic_slice_in_dim(node, block.start, keys.shape[0])]
                along = jnp.sum(keys * own, axis=1).astype(far.dtype)
                return jax.lax.dynamic_update_slice_in_dim(far, along, block.start, axis=0)

            return walk(classes, jnp.dtype(jnp.float32), visit, jnp.zeros(num_classes, jnp.float32), block_size=at_once)

        def grow(key: KeyArray) -> tuple[Array, Array, Array]:
            place = jnp.arange(width << depth, dtype=jnp.int32)
            ids = jnp.where(place < classes.num_valid, place, EMPTY)[None]
            node = jnp.zeros(num_classes, jnp.int32)
            number = jnp.reshape(classes.num_valid, 1).astype(jnp.int32)
            pivots, thresholds = [jnp.zeros((1, 2), jnp.int32)], [jnp.zeros(1)]
            for level in range(depth):
                one, other = _two_of(jax.random.fold_in(key, level), number)
                pivots.append(jnp.concatenate([_at(ids, one), _at(ids, other)], axis=1))
                far = along(_line(classes, longest, pivots[-1]), node)
                far = far.at[ids].get(mode="fill", fill_value=jnp.inf)
                far, ids = jax.lax.sort((far, ids), dimension=1, num_keys=1)
                left = number // 2
                between = 0.5 * (_at(far, left - 1) + _at(far, left))[:, 0]
                thresholds.append(jnp.where(left > 0, between, -jnp.inf))  # never into an empty left half
                ids, number = _halves(ids, left, number)
                rows = jnp.broadcast_to(jnp.arange(ids.shape[0], dtype=jnp.int32)[:, None], ids.shape)
                node = node.at[ids].set(rows, mode="drop")
            return ids, jnp.concatenate(pivots), jnp.concatenate(thresholds)

        ids, pivots, thresholds = jax.lax.map(grow, jax.random.split(key, self.num_trees))
        return ForestState(ids, pivots, thresholds, longest)

    def search(
        self,
        state: ForestState,
        embeddings: Float[Array, "B dim"],
        classes: Classes,
        k: int,
        num_kept: int | None = None,
        *,
        by_votes: bool = False,
    ) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
        """The k best classes of each embedding among those of its leaves.

        Args:
            state: as built.
            embeddings: any number; some of them are searched at a time.
            classes: the output layer now.
            k: classes per embedding.
            num_kept: how many are scored, at least k: those that are in the most leaves; None: all.
            by_votes: True: the score of a class is the number of leaves that it is in, not its logit.

        Returns:
            Scores in falling order, and ids; slots without a class have score -inf and id 0.
        """
        depth = self.depth(classes.num_classes)
        # How long the leaves are depends on the number of classes; all are padded to leaf_size here.
        short_of = ((0, 0), (0, self.leaf_size - state.ids.shape[2]))
        total = self.num_trees * self.leaf_size
        kept = total if num_kept is None else min(max(k, num_kept), total)
        keys = unit(query_keys(embeddings, classes, state.longest is not None))
        every_tree = jnp.arange(self.num_trees)

        def one(example: tuple[Float[Array, " dim"], Float[Array, " width"]]) -> tuple[Array, Array]:
            embedding, key = example

            def down(_: Array, node: Int[Array, " trees"]) -> Int[Array, " trees"]:
                line = _line(classes, state.longest, state.pivots[every_tree, node])
                return 2 * node + (line @ key >= state.thresholds[every_tree, node]).astype(node.dtype)

            leaf = jax.lax.fori_loop(0, depth, down, jnp.ones(self.num_trees, jnp.int32)) - (1 << depth)
            ids = jnp.pad(state.ids[every_tree, leaf], short_of, constant_values=EMPTY)
            ids, votes = _distinct(ids.reshape(-1))
            if kept < total:
                best = smallest(self.num_trees - votes, kept, self.num_trees.bit_length())
                ids, votes = ids[best], votes[best]
            at = jnp.where(votes > 0, ids, 0)
            scores = votes.astype(jnp.float32) if by_votes else logits_of(embedding, at, classes)
            scores, best = jax.lax.top_k(jnp.where(votes > 0, scores, -jnp.inf), min(k, kept))
            return scores, jnp.where(scores > -jnp.inf, at[best], 0)

        scratch = (2 * self.num_trees + kept) * keys.shape[1]
        at_once = max(1, min(_SCRATCH // scratch, embeddings.shape[0]))
        scores, ids = jax.lax.map(one, (embeddings, keys), batch_size=at_once)
        short = ((0, 0), (0, k - scores.shape[1]))
        return jnp.pad(scores, short, constant_values=-jnp.inf), jnp.pad(ids, short)


def _line(classes: Classes, longest: Float[Array, ""] | None, pivots: Int[Array, "n 2"]) -> Float[Array, "n width"]:
    """The line from the second to the first of two classes: the difference of their keys, each of length 1."""
    ids = jnp.where(pivots < classes.num_valid, pivots, 0)
    vectors = as_scored(classes.vectors[ids], classes.normalized)
    keys = unit(class_keys(vectors, None if classes.biases is None else classes.biases[ids], longest))
    return keys[:, 0] - keys[:, 1]


def _at(rows: Array, place: Int[Array, " nodes"]) -> Array:
    """The entry of each row at a place of its own."""
    return jnp.take_along_axis(rows, jnp.clip(place, 0, rows.shape[1] - 1)[:, None], axis=1)


def _halves(
    ids: Int[Array, "nodes n"], left: Int[Array, " nodes"], number: Int[Array, " nodes"]
) -> tuple[Int[Array, "children half"], Int[Array, " children"]]:
    """The first ``left`` of each node's ``number`` ids, then the others, as rows of their own; ``EMPTY`` behind them.

    Example:
        >>> import jax.numpy as jnp
        >>> ids, number = _halves(jnp.array([[7, 2, 9, EMPTY]]), jnp.array([1]), jnp.array([3]))
        >>> [row[:n] for row, n in zip(ids.tolist(), number.tolist())]
        [[7], [2, 9]]
    """
    nodes, slots = ids.shape
    place = jnp.arange(slots // 2, dtype=jnp.int32)
    later = jnp.take_along_axis(ids, jnp.minimum(left[:, None] + place, slots - 1), axis=1)
    halves = jnp.stack([ids[:, : slots // 2], later], axis=1)
    numbers = jnp.stack([left, number - left], axis=1)
    halves = jnp.where(place < numbers[:, :, None], halves, EMPTY)
    return halves.reshape(2 * nodes, -1), numbers.reshape(-1)


def _two_of(key: KeyArray, number: Int[Array, " nodes"]) -> tuple[Int[Array, " nodes"], Int[Array, " nodes"]]:
    """Two different random places of each node; the same place twice where there is only one."""
    key_one, key_other = jax.random.split(key)
    one = random_below(key_one, number.shape, jnp.maximum(number, 1)).astype(jnp.int32)
    step = random_below(key_other, number.shape, jnp.maximum(number - 1, 1)).astype(jnp.int32)
    return one, (one + 1 + step) % jnp.maximum(number, 1)


def _distinct(ids: Int[Array, " n"]) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
    """The ids in rising order, and at the first place of each how often it came; 0 elsewhere and for ``EMPTY``.

    Example:
        >>> import jax.numpy as jnp
        >>> ids, votes = _distinct(jnp.array([7, 2, EMPTY, 7]))
        >>> ids.tolist()[:3], votes.tolist()
        ([2, 7, 7], [1, 2, 0, 0])
    """
    ids = jnp.sort(ids)
    place = jnp.arange(ids.shape[0], dtype=jnp.int32)
    first = starts_of_runs(ids)
    begins = jnp.where(first, place, ids.shape[0])
    ends = jnp.append(jax.lax.cummin(begins, reverse=True)[1:], ids.shape[0])
    return ids, jnp.where(first & (ids != EMPTY), ends - place, 0)
