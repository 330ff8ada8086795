"""A hashing forest: random trees of hyperplanes over the class vectors, the retrieval of selective softmax."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from candax.base import Query, Retriever, Sampler, no_follow
from candax.checks import check_positive, checked
from candax.samplers.common.keys import Near
from candax.samplers.common.schedules import built_anew
from candax.samplers.common.shares import divisible
from candax.samplers.forest import Forest, ForestState
from candax.samplers.retrieved import retrieved


@checked
@divisible("num_kept")
def forest_index(
    *,
    num_trees: int = 100,
    leaf_size: int = 32,
    num_kept: int | None = None,
    order: Literal["score", "votes"] = "score",
    mass: float | None = None,
    scale: float = 1.0,
    near: Near = "vector",
) -> Retriever:
    """The index of ``hashing_forest`` by itself: the best classes of an embedding's leaves in random trees.

    The arguments are those of ``hashing_forest``. With ``order="votes"`` the scores of a search are votes, not logits.

    Returns:
        A ``Retriever``; its state is a ``ForestState``, which changes at refreshes only.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> import jax, candax as cx
        >>> classes = cx.Classes(jax.random.normal(jax.random.key(0), (64, 4)))
        >>> index = cx.samplers.forest_index(num_trees=3, leaf_size=16)
        >>> state = index.build(jax.random.key(1), classes)
        >>> jax.jit(index.find, static_argnums=3)(state, classes.vectors[:2], classes, 5)[1].shape
        (2, 5)
    """
    check_positive("num_trees", num_trees)
    check_positive("leaf_size", leaf_size)
    check_positive("num_kept", num_kept, optional=True)
    if order == "votes" and (num_kept is not None or mass is not None):
        raise ValueError('num_kept and mass go by scores: leave them out with order="votes", or use order="score".')
    if mass is not None and not 0 < mass <= 1:
        raise ValueError(f"expected 0 < mass <= 1, the share of probability to be kept, got {mass!r}.")
    if not scale > 0:
        raise ValueError(f"expected scale > 0, got {scale!r}.")
    forest = Forest(num_trees, leaf_size, near)
    build = jax.jit(forest.build)

    def search(state: ForestState, query: Query, k: int) -> tuple[Array, Array]:
        scores, ids = forest.search(state, query.embeddings, query.classes, k, num_kept, by_votes=order == "votes")
        if mass is None:
            return scores, ids
        kept = (scores > -jnp.inf) & _holds_mass(scale * scores, mass)
        return jnp.where(kept, scores, -jnp.inf), jnp.where(kept, ids, 0)

    return Retriever(build, search, no_follow, built_anew(build), "forest")


@checked
def hashing_forest(
    k: int,
    *,
    num_trees: int = 100,
    leaf_size: int = 32,
    num_kept: int | None = None,
    order: Literal["score", "votes"] = "score",
    mass: float | None = None,
    scale: float = 1.0,
    near: Near = "vector",
    schedule: int | Callable[[int], bool] = 1000,
) -> Sampler:
    """The best classes of those that share a leaf with the embedding in one of L random trees: HF softmax.

    A tree halves the classes until at most ``leaf_size`` are left: each node draws two of its classes at random, and
    halves its classes by a hyperplane orthogonal to the line between the two, which sends embeddings left or right too.
    Only the directions of vectors count. An example goes down every tree; the distinct classes of its L leaves are
    ranked, and the k first are its candidates, each with expected count 1: like ``top_k`` it is deterministic given the
    trees, and nothing corrects for the classes outside. ``log_expected_count`` is 0 for the set and for the labels,
    -inf for others.

    **tau.** ANN Softmax runs this with tau_cp = .9 without saying what that is. Here it is taken to be the threshold on
    cumulative probability by which the original paper's adaptive version (HF-A) chooses how many classes are active:
    with ``mass=0.9`` an example keeps only as many of its k best as hold 90 % of their softmax's probability, and at
    least one. The paper adapts one number over the course of training; here every example has its own, in every step.

    **Unlike the paper**, a hyperplane lies at the median and not half way between its two classes, so that all trees
    have the same depth, all leaves the same size within 1, and all arrays a fixed size. Embeddings and class vectors
    are divided by their length first, because a hyperplane off the origin means nothing to an embedding of another
    length. A hyperplane is stored as its two classes and its place between them: it follows the vectors of these
    classes, while classes change leaves at refreshes only.

    Cost: the state takes 4 L num_classes (1 + 3 / leaf_size) bytes or a little more. A draw compares an example with
    2 L log2(num_classes / leaf_size) class vectors and scores L * leaf_size of them, or ``num_kept``. Building sorts
    all classes L log2(num_classes / leaf_size) times, one tree after the other.

    Args:
        k: slots per example; those in excess of the classes found are masked.
        num_trees: L.
        leaf_size: the most classes in a leaf.
        num_kept: how many of the classes found are ranked by score: those with the most votes, one from each tree that
            finds the class. None: all.
        order: what ranks the classes: "score", the logit, or "votes" (with equal votes, lower ids first).
        mass: tau_cp, in (0, 1]; None: all k are kept.
        scale: factor on the logits in the softmax of ``mass``: the margin's scale, where logits are cosines.
        near: "vector": trees go by the class vectors' directions. "logit": by vectors extended by bias and length, so
            that near classes have large logits; see ``candax.samplers.common.keys.class_keys``.
        schedule: when to build the trees anew: every so many steps (the paper's T), or ``(step) -> bool``.

    Returns:
        A ``Sampler``; its state is a ``ForestState``.

    Raises:
        ValueError: for numbers out of range or arguments that do not belong together.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> angle = jnp.arange(64) * (2 * jnp.pi / 64)
        >>> classes = cx.Classes(jnp.stack([jnp.cos(angle), jnp.sin(angle)], 1), None, None, jnp.int32(64))
        >>> sampler = cx.samplers.hashing_forest(3, num_trees=10, leaf_size=4)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(9 * classes.vectors[20:21], jnp.array([[2]]), classes)
        >>> sorted(sampler.sample(state, jax.random.key(1), query).ids[0].tolist())
        [19, 20, 21]

    Source: Zhang, Yang, Yan, Lin, Accelerated Training for Massive Classification via Dynamic Class Selection (2018),
        as described by Zhao et al., ANN Softmax (PVLDB 2022), sections 2.2.2 and 4, where L = 100 and T = 1000; the
        leaves' size is not given there.
    """
    if num_kept is not None and num_kept < k:
        raise ValueError(f"expected num_kept >= k, got num_kept={num_kept} to be ranked for k={k}.")
    index = forest_index(
        num_trees=num_trees,
        leaf_size=leaf_size,
        num_kept=num_kept,
        order=order,
        mass=mass,
        scale=scale,
        near=near,
    )
    return retrieved(index, k, schedule=schedule)


def _holds_mass(scores: Float[Array, "B k"], mass: float) -> Array:
    """Which scores, in falling order, are needed for ``mass`` of their softmax: those before which it is not reached.

    Example:
        >>> import jax.numpy as jnp
        >>> _holds_mass(jnp.log(jnp.array([[0.6, 0.3, 0.1]])), 0.8).tolist()
        [[True, True, False]]
    """
    probabilities = jax.nn.softmax(scores, axis=1)
    before = jnp.cumsum(probabilities, axis=1) - probabilities
    return before < mass
