"""In-batch candidates: the labels of the batch serve as each other's candidates."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Candidates, Classes, Facts, KeyArray, Query, Sampler, never, no_update
from candax.checks import check_positive, checked, warn
from candax.samplers.common.groups import count_groups
from candax.samplers.common.schedules import built_anew
from candax.samplers.common.shares import divisible
from candax.samplers.common.thresholds import check_counts

# With this many sets or more, each of all other groups' labels, a step is many times slower than with one set.
_MANY_SETS = 64


@checked
@divisible()
def in_batch(*, num_groups: int | None = 1) -> Sampler:
    """The labels of the batch as candidates, with expected count n * q(c): the correction for popularity.

    q(c) = counts(c) / sum counts is the frequency of class c, and n is the number of labels in the set. A class that is
    the label of several examples stands in the set as often (candidates with replacement).

    With one group (G = 1, S = B * T) the set is all labels of the batch; the head marks an example's own ones as hits.
    Once a loss has removed these, the labels of B - 1 examples are left, so the estimate of the sum over the other
    classes is too small by a factor of about 1 - 1/B. With G > 1 groups a group gets the labels of all *other* groups
    (S = (B - B/G) * T): only coincidental hits are removed, and there is no such factor.

    The one law holds over the choice of the batch, if the counts are those of the stream of examples, and if for every
    m the labels of examples with m labels have frequencies q too. With one label per example the second is always so;
    with several, it fails as far as popular classes prefer examples with many (or few) labels. It does no harm that
    labels are distinct within an example. Only the batch is random: the key is not used.

    Args:
        num_groups: G, groups per batch (1: one shared set of all labels); None: one set per example, whose class
            vectors are read once per example: with some hundreds of examples this is many times slower, and it warns.

    Returns:
        A ``Sampler``; its state is 4 bytes per class. Slots without a label, and labels of count 0, are masked.

    Raises:
        ValueError: if ``num_groups`` is not positive or does not divide the batch; in ``init`` without valid counts.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.zeros((4, 2)), None, jnp.array([4.0, 2.0, 1.0, 1.0]), jnp.int32(4))
        >>> sampler = cx.samplers.in_batch()
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.zeros((2, 2)), jnp.array([[1, 3], [0, -1]]), classes)
        >>> candidates = sampler.sample(state, jax.random.key(1), query)
        >>> counts = jnp.exp(candidates.log_expected_count)
        >>> [(int(c), round(float(n), 3)) for c, n in zip(candidates.ids[0], counts[0])][:3]
        [(1, 0.75), (3, 0.375), (0, 1.5)]

    Source: the log Q correction of Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
        Recommendations (2019), with the frequencies taken from the counts.
    """
    check_positive("num_groups", num_groups, optional=True)

    def init(key: KeyArray, classes: Classes) -> Float[Array, " num_classes"]:
        del key
        counts = check_counts(classes.counts, "in_batch", num_valid=classes.num_valid)
        counts = jnp.where(jnp.arange(classes.num_classes) < classes.num_valid, counts, 0.0)
        some = counts > 0
        total = jnp.sum(counts) if classes.total_count is None else classes.total_count
        log_all = jnp.log(jnp.where(total > 0, total, 1))
        return jnp.where(some, jnp.log(jnp.where(some, counts, 1)) - log_all, -jnp.inf)

    def sample(state: Array, key: KeyArray, query: Query) -> Candidates:
        del key
        groups = count_groups(num_groups, query)
        if groups >= _MANY_SETS:
            warn(
                f"in_batch: {groups} sets of {groups - 1} examples' labels each read {groups * (groups - 1)} rows of "
                "labels per step; a few groups, such as num_groups=4, are many times quicker and nearly as exact."
            )
        others = (jnp.arange(groups)[:, None] + jnp.arange(1, groups)) % groups

        def of_set(labels: Array) -> Array:
            labels = labels.reshape(groups, -1)
            return labels if groups == 1 else labels[others].reshape(groups, -1)

        labels = of_set(query.labels)
        ids = jnp.maximum(labels, 0)
        # A shard states the frequencies of its classes among the labels of all shards.
        is_label = labels >= 0 if query.elsewhere is None else (labels >= 0) | of_set(query.elsewhere)
        number = jnp.sum(is_label, axis=1)
        drawn = Candidates(ids, jnp.zeros(ids.shape, jnp.float32), labels >= 0, draw=number)
        counts = log_expected_count(state, drawn, ids, query)
        mask = (labels >= 0) & (counts > -jnp.inf)
        return Candidates(jnp.where(mask, ids, 0), jnp.where(mask, counts, 0.0), mask, draw=number)

    def log_expected_count(
        state: Array, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del query
        number = candidates.draw.astype(jnp.float32)
        return state[ids] + jnp.where(number > 0, jnp.log(jnp.maximum(number, 1)), -jnp.inf)[:, None]

    facts = Facts(covers_all=False, draw_independent=True, with_replacement=True, law_over="batch")
    return Sampler(init, sample, log_expected_count, no_update, built_anew(init), never, facts)
