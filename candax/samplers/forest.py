"""Random trees over class vectors: built by halving, searched by going down all of them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Classes, KeyArray, pytree
from candax.cosines import as_scored, unit
from candax.samplers.keys import Near, class_keys, longest_key, query_keys
from candax.samplers.lsh.edits import EMPTY
from candax.samplers.scoring import logits_of
from candax.samplers.selection import smallest
from candax.samplers.static import check_positive
from candax.samplers.thresholds import random_below

# Numbers of class rows that are gathered at a time, by the build and by a search.
_SCRATCH = 1 << 22


@pytree
class ForestState:
    """The trees, all of one shape: node 1 is the root, 2 i and 2 i + 1 are what node i is halved into.

    Attributes:
        ids: the classes of every tree, leaf by leaf.
        bounds: where each leaf begins, and the last one ends; beyond are padding rows.
        pivots: the two classes between which a node lies.
        thresholds: what is at least this far along the line from the second to the first goes right.
        longest: the largest length of class vectors, where keys are extended by it.
    """

    ids: Int[Array, "trees num_classes"]
    bounds: Int[Array, "leaves_and_end"]
    pivots: Int[Array, "trees leaves 2"]
    thresholds: Float[Array, "trees leaves"]
    longest: Float[Array, ""] | None


class FoundClasses(NamedTuple):
    """The best classes of each example, in falling order; where there are none the score is -inf and the id 0."""

    scores: Float[Array, "B k"]
    ids: Int[Array, "B k"]


class _Tree(NamedTuple):
    ids: Int[Array, "num_classes"]
    pivots: Int[Array, "leaves 2"]
    thresholds: Float[Array, "leaves"]


class Forest(NamedTuple):
    """The static numbers of a forest, and what can be done with its state; see ``hashing_forest``."""

    num_trees: int
    leaf_size: int
    near: Near

    def check(self) -> None:
        """Raises ValueError for numbers out of range."""
        check_positive("num_trees", self.num_trees)
        check_positive("leaf_size", self.leaf_size)
        if self.near not in ("vector", "logit"):
            raise ValueError(f'expected near "vector" or "logit", got {self.near!r}.')

    def depth(self, num_classes: int) -> int:
        """How often classes are halved until no leaf has more than ``leaf_size``."""
        return (-(-num_classes // self.leaf_size) - 1).bit_length()

    def build(self, key: KeyArray, classes: Classes) -> ForestState:
        """Random trees over all valid classes, one after the other, each by sorting the classes once a level.

        O(num_trees * num_classes * (dim + log num_classes) * depth); beside the state it holds some arrays of
        [num_classes] and a few million numbers. To be jitted.
        """
        depth = self.depth(classes.num_classes)
        extended = self.near == "logit" and not classes.normalized
        longest = longest_key(classes) if extended else None
        bounds = _halved(classes.num_valid, depth)
        rows = jnp.arange(classes.num_classes, dtype=jnp.int32)
        # Padding rows are beyond the last leaf, on every level.
        leaf = jnp.searchsorted(bounds[1:], rows, side="right", method="sort").astype(jnp.int32)
        at_once = max(1, _SCRATCH // (3 * classes.vectors.shape[1]))

        def along(ids: Int[Array, "n"], pivots: Int[Array, "n 2"]) -> Float[Array, "n"]:
            line = _line(classes, longest, pivots)
            return jnp.einsum("nd,nd->n", _keys(classes, longest, ids), line)

        def halve(level: Array, tree_and_key: tuple[_Tree, KeyArray]) -> tuple[_Tree, KeyArray]:
            tree, key = tree_and_key
            below = depth - level  # levels down to the leaves
            nodes = jnp.arange(tree.pivots.shape[0], dtype=jnp.int32)
            number = jnp.minimum(nodes + 1, 1 << level) << below
            first, middle, end = bounds[number - (1 << below)], bounds[number - (1 << (below - 1))], bounds[number]
            one, other = _two_of(jax.random.fold_in(key, level), first, end - first)
            pivots = jnp.stack([tree.ids[one], tree.ids[other]], axis=1)
            node = leaf >> below
            of_class = pivots[jnp.minimum(node, nodes.shape[0] - 1)]
            far = jax.lax.map(lambda some: along(*some), (tree.ids[:, None], of_class[:, None]), batch_size=at_once)
            _, far, ids = jax.lax.sort((node, far[:, 0], tree.ids), num_keys=2)
            here = jnp.where(nodes < (1 << level), nodes + (1 << level), nodes.shape[0])
            between = 0.5 * (far[jnp.maximum(middle - 1, 0)] + far[jnp.minimum(middle, far.shape[0] - 1)])
            thresholds = jnp.where(middle > first, between, -jnp.inf)  # never into an empty left half
            new = _Tree(
                ids,
                tree.pivots.at[here].set(pivots, mode="drop"),
                tree.thresholds.at[here].set(thresholds, mode="drop"),
            )
            return new, key

        def grow(key: KeyArray) -> _Tree:
            leaves = bounds.shape[0] - 1
            start = _Tree(rows, jnp.zeros((leaves, 2), jnp.int32), jnp.zeros(leaves))
            return jax.lax.fori_loop(0, depth, halve, (start, key))[0]

        trees = jax.lax.map(grow, jax.random.split(key, self.num_trees))
        return ForestState(trees.ids, bounds, trees.pivots, trees.thresholds, longest)

    def search(
        self,
        state: ForestState,
        embeddings: Float[Array, "B dim"],
        classes: Classes,
        k: int,
        num_kept: int | None = None,
        *,
        by_votes: bool = False,
    ) -> FoundClasses:
        """The k best classes of each embedding among those of its leaves.

        Args:
            state: as built.
            embeddings: any number; some of them are searched at a time.
            classes: the output layer now.
            k: classes an embedding.
            num_kept: how many are scored: those in most leaves; None: all.
            by_votes: scores are the number of leaves a class is in, and not its logit.

        Returns:
            ``FoundClasses``.
        """
        depth, width = self.depth(classes.num_classes), min(self.leaf_size, classes.num_classes)
        total = self.num_trees * width
        kept = total if num_kept is None else min(num_kept, total)
        keys = unit(query_keys(embeddings, classes, state.longest is not None))
        every_tree = jnp.arange(self.num_trees)

        def one(example: tuple[Float[Array, "dim"], Float[Array, "width"]]) -> tuple[Array, Array]:
            embedding, key = example

            def down(_: Array, node: Int[Array, "trees"]) -> Int[Array, "trees"]:
                line = _line(classes, state.longest, state.pivots[every_tree, node])
                return 2 * node + (line @ key >= state.thresholds[every_tree, node])

            leaf = jax.lax.fori_loop(0, depth, down, jnp.ones(self.num_trees, jnp.int32)) - (1 << depth)
            place = state.bounds[leaf][:, None] + jnp.arange(width)
            inside = place < state.bounds[leaf + 1][:, None]
            ids = state.ids[every_tree[:, None], jnp.minimum(place, state.ids.shape[1] - 1)]
            ids, votes = _distinct(jnp.where(inside, ids, EMPTY).reshape(-1))
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
        return FoundClasses(jnp.pad(scores, short, constant_values=-jnp.inf), jnp.pad(ids, short))


def _keys(classes: Classes, longest: Float[Array, ""] | None, ids: Int[Array, "*n"]) -> Float[Array, "*n width"]:
    """Class vectors, or what they are extended to, of length 1; zeros for padding rows."""
    vectors = as_scored(classes.vectors[ids], classes.normalized)
    biases = None if classes.biases is None else classes.biases[ids]
    keys = unit(class_keys(vectors, biases, longest))
    return jnp.where((ids < classes.num_valid)[..., None], keys, 0.0)


def _line(classes: Classes, longest: Float[Array, ""] | None, pivots: Int[Array, "n 2"]) -> Float[Array, "n width"]:
    keys = _keys(classes, longest, pivots)
    return keys[:, 0] - keys[:, 1]


def _halved(number: Int[Array, ""], depth: int) -> Int[Array, "leaves_and_end"]:
    """Where each of 2^depth parts of ``number`` things begins, when halves are halved again, and the end.

    Example:
        >>> import jax.numpy as jnp
        >>> _halved(jnp.int32(7), 2).tolist()
        [0, 1, 3, 5, 7]
    """
    bounds = jnp.stack([jnp.zeros((), jnp.int32), number.astype(jnp.int32)])
    for _ in range(depth):
        middle = bounds[:-1] + (bounds[1:] - bounds[:-1]) // 2
        bounds = jnp.append(jnp.stack([bounds[:-1], middle], axis=1).reshape(-1), bounds[-1])
    return bounds


def _two_of(
    key: KeyArray, first: Int[Array, "nodes"], size: Int[Array, "nodes"]
) -> tuple[Int[Array, "nodes"], Int[Array, "nodes"]]:
    """Two different places of each run, at random; the same one where the run is too short."""
    key_one, key_other = jax.random.split(key)
    one = random_below(key_one, size.shape, jnp.maximum(size, 1).astype(jnp.uint32)).astype(jnp.int32)
    step = random_below(key_other, size.shape, jnp.maximum(size - 1, 1).astype(jnp.uint32)).astype(jnp.int32)
    other = (one + 1 + step) % jnp.maximum(size, 1)
    return first + one, first + other


def _distinct(ids: Int[Array, "n"]) -> tuple[Int[Array, "n"], Int[Array, "n"]]:
    """Each id once, at the first of its places in rising order, with how often it came; 0 elsewhere and for ``EMPTY``.

    Example:
        >>> import jax.numpy as jnp
        >>> ids, votes = _distinct(jnp.array([7, 2, EMPTY, 7]))
        >>> ids.tolist()[:3], votes.tolist()
        ([2, 7, 7], [1, 2, 0, 0])
    """
    ids = jnp.sort(ids)
    place = jnp.arange(ids.shape[0], dtype=jnp.int32)
    first = jnp.concatenate([jnp.ones(1, bool), ids[1:] != ids[:-1]])
    begins = jnp.where(first, place, ids.shape[0])
    ends = jnp.append(jax.lax.cummin(begins, reverse=True)[1:], ids.shape[0])
    return ids, jnp.where(first & (ids != EMPTY), ends - place, 0)
