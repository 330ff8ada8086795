"""Sample grouping: the examples of a group share what each of them retrieves, all their labels, and a uniform fill."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Candidates, Facts, KeyArray, Query, Retriever, Sampler, State
from candax.checks import check_positive, checked
from candax.runs import starts_of_runs
from candax.samplers.common.found import EMPTY, Found, is_found, or_empty, thin_and_fill
from candax.samplers.common.groups import count_groups, counting, only_counting
from candax.samplers.common.selection import falling, smallest
from candax.samplers.common.shares import divisible
from candax.samplers.retrieved import retrieved


@checked
def classes_per_example(num_sampled: int, batch_size: int, num_groups: int) -> int:
    """How many classes each example retrieves: k = C_sub g / B, rounded down, at least 1.

    The examples of a group then retrieve about ``num_sampled`` classes together, if no class is found twice.

    Args:
        num_sampled: C_sub, classes per group.
        batch_size: B, examples per batch, on all devices together.
        num_groups: g, groups per batch.

    Returns:
        k.

    Raises:
        ValueError: for numbers below 1.

    Example:
        >>> classes_per_example(1000, batch_size=256, num_groups=8)
        31

    Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), equation 8.
    """
    for name, value in (("num_sampled", num_sampled), ("batch_size", batch_size), ("num_groups", num_groups)):
        check_positive(name, value)
    return max(1, num_sampled * num_groups // batch_size)


@checked
@divisible("num_sampled", "k")
def grouped(
    sampler: Sampler | Retriever, *, num_sampled: int, num_groups: int | None = 1, k: int | None = None
) -> Sampler:
    """Groups of examples share exactly ``num_sampled`` distinct classes: the sample grouping of ANN Softmax.

    A group's set is the union of what its examples retrieve and all their labels; the slots left free take uniformly
    random other classes. If the union is too large, labels are kept first, then the classes of best score. Examples
    without a label, where others of the group have one (padding), retrieve nothing.

    **Expected counts.** Labels and retrieved classes in the set have count 1. With n of them and F = num_sampled - n
    free slots, every other class has count F / (num_valid - n), the probability that it is drawn. So, whatever was
    retrieved, a sum over all classes is estimated without bias where slots are free, as ``css`` does; a loss without
    counts (``subset_softmax``) is the paper's method. Without free slots, classes outside the set have count 0, and
    nothing corrects for them: hence ``facts.covers_all`` is False, and ``facts.exact`` holds for the classes that have
    a count. So have labels for which there is no slot: a head scores true classes separately.

    Args:
        sampler: finds classes for each example by itself, without replacement: a retriever (``ivf_index`` ...), whose
            classes are ranked by score over all examples of the group, or a sampler (``top_k``, ``lsh_top_k`` ...) that
            returns the best first, whose classes are ranked by slot.
        num_sampled: C_sub, slots per group; slots in excess of the number of valid classes are masked.
        num_groups: G, groups per batch (1: one shared set); None: one per example.
        k: how many classes a retriever is asked for per example; None: as many as fill a group if no class is found
            twice, ``classes_per_example(num_sampled, batch size, num_groups)``. The batch size counts examples that are
            left out too: where most of a batch is padding, give a larger k. A sampler has a k of its own.

    Returns:
        A ``Sampler`` with the state, updates, refreshes and schedule of the given one.

    Raises:
        ValueError: for numbers out of range, k with a sampler, or a sampler with replacement; in ``sample`` if the
            sampler returns shared sets or the groups do not divide the batch.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.eye(6), None, None, jnp.int32(6))
        >>> sampler = cx.samplers.grouped(cx.samplers.top_k(1), num_sampled=4)
        >>> query = cx.Query(jnp.eye(6)[jnp.array([2, 2])], jnp.array([[5], [0]]), classes)
        >>> candidates = sampler.sample((), jax.random.key(1), query)
        >>> sorted(candidates.ids[0].tolist()) in ([0, 1, 2, 5], [0, 2, 3, 5], [0, 2, 4, 5])
        True
        >>> counts = sampler.log_expected_count((), candidates, jnp.arange(6)[None], query)
        >>> [round(float(x), 3) for x in jnp.exp(counts)[0]]
        [1.0, 0.333, 1.0, 0.333, 0.333, 1.0]

    Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), algorithm 2; it does not
        say what happens on overflow.
    """
    check_positive("num_sampled", num_sampled)
    check_positive("num_groups", num_groups, optional=True)
    check_positive("k", k, optional=True)
    if k is not None and isinstance(sampler, Sampler):
        raise ValueError(
            f"expected k with a retriever only, got k={k} with a sampler, which has its own: leave it out."
        )
    alone = retrieved(sampler, 1) if isinstance(sampler, Retriever) else sampler
    if alone.facts.with_replacement:
        raise ValueError("expected a sampler without replacement, such as top_k, got one that returns classes twice.")

    def sample(state: State, key: KeyArray, query: Query) -> Candidates:
        groups = count_groups(num_groups, query)
        key_retrieve, key_fill = jax.random.split(key)
        if isinstance(sampler, Retriever):
            size = max(1, query.embeddings.shape[0])
            number = classes_per_example(num_sampled, size, groups) if k is None else k
            # A copy of another example finds nothing of its own.
            asked = only_counting(query, groups)
            if sampler.shortlist is None:
                score, ids = sampler.search(state, asked, number)
            else:
                score, ids = sampler.shortlist(state, asked, groups, number, num_sampled)
            ids = jnp.where(score > -jnp.inf, ids, EMPTY)
        else:
            each = sampler.sample(state, key_retrieve, query)
            if each.ids.shape[0] != query.embeddings.shape[0]:
                raise ValueError(
                    f"expected a sampler with one set per example, got {each.ids.shape[0]} sets for a batch of "
                    f"{query.embeddings.shape[0]}: leave its own num_groups out."
                )
            score = jnp.broadcast_to(-jnp.arange(each.ids.shape[1], dtype=jnp.float32), each.ids.shape)
            ids = jnp.where(each.mask & counting(query, groups).reshape(-1, 1), each.ids, EMPTY)
        labels = or_empty(query.labels).reshape(groups, -1).astype(jnp.int32)
        ids = jnp.concatenate([labels, ids.reshape(groups, -1)], axis=1)
        order = jnp.concatenate([jnp.zeros(labels.shape, jnp.uint32), falling(score.reshape(groups, -1))], axis=1)
        found = _best(ids, order, num_sampled, query.classes.num_classes)
        ids, mask, _, log_fill = thin_and_fill(key_fill, found, num_sampled, 0, query.classes.num_valid)
        drawn = Candidates(ids, jnp.zeros(ids.shape, jnp.float32), mask, draw=(found, log_fill))
        counts = log_expected_count(state, drawn, ids, query)
        return Candidates(ids, jnp.where(mask, counts, 0.0), mask, drawn.draw)

    def log_expected_count(
        state: State, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del state
        found, log_fill = candidates.draw
        counts = jnp.where(is_found(found.ids, ids), 0.0, log_fill[:, None])
        return jnp.where(ids < query.classes.num_valid, counts, -jnp.inf)

    facts = Facts(
        covers_all=False,
        draw_independent=isinstance(sampler, Retriever) or sampler.facts.draw_independent,
        with_replacement=False,
        exact=True,
        law_over="draw",
        of_batch=num_groups == 1,
    )
    return alone._replace(sample=sample, log_expected_count=log_expected_count, facts=facts)


def _best(ids: Int[Array, "G n"], order: Array, num: int, num_classes: int) -> Found:
    """The distinct ids of each group; where there are more than ``num``, those of lowest ``order``."""
    ids, order = _by_id(ids, order, num_classes)
    first = starts_of_runs(ids) & (ids != EMPTY)
    number = jnp.minimum(jnp.sum(first, axis=1, dtype=jnp.int32), num)
    order = jnp.where(first, order, jnp.uint32(0xFFFFFFFF))
    size = min(num, ids.shape[1])
    place = jax.vmap(lambda order: smallest(order, size, 32))(order)
    kept = jnp.where(jnp.take_along_axis(first, place, axis=1), jnp.take_along_axis(ids, place, axis=1), EMPTY)
    return Found(jnp.sort(kept, axis=1), number)


def _by_id(ids: Int[Array, "G n"], order: Array, num_classes: int) -> tuple[Array, Array]:
    """Ids in rising order, and at the first of each run of equal ids the lowest ``order`` of the run."""
    number = ids.shape[1]
    if num_classes * number >= 1 << 32:
        ids, order = jax.lax.sort((ids, order), num_keys=2, dimension=1)
        return ids, order
    # A CPU sorts one array of integers several times as fast as two: each holds an id and its place.
    keys = ids.astype(jnp.uint32) * number + jnp.arange(number, dtype=jnp.uint32)
    keys = jnp.sort(jnp.where(ids == EMPTY, jnp.uint32(0xFFFFFFFF), keys), axis=1)
    ids = jnp.where(keys == jnp.uint32(0xFFFFFFFF), EMPTY, (keys // number).astype(jnp.int32))
    order = jnp.take_along_axis(order, keys % number, axis=1)

    def lowest(after: tuple[Array, Array], here: tuple[Array, Array]) -> tuple[Array, Array]:
        same = after[0] == here[0]
        return here[0], jnp.where(same, jnp.minimum(after[1], here[1]), here[1])

    ids, order = jax.lax.associative_scan(lowest, (ids, order), reverse=True, axis=1)
    return ids, order
