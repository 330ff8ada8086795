"""IVF-BQ as a sampler: each example's most active classes, alone or shared by groups of examples."""

from collections.abc import Callable

from candax.base import Sampler, never
from candax.checks import check_positive, checked
from candax.samplers.combinators import every
from candax.samplers.common.keys import Near
from candax.samplers.common.shares import divisible
from candax.samplers.grouping import grouped
from candax.samplers.ivf.codes import Codes
from candax.samplers.ivf.factory import ivf_index
from candax.samplers.retrieved import retrieved


@checked
@divisible("k", "num_centers", "hm_num", "num_kept", "num_sampled")
def ivf_bq(
    k: int | None = None,
    *,
    num_centers: int,
    hm_num: int,
    num_kept: int | None = None,
    num_sampled: int | None = None,
    num_groups: int | None = None,
    codes: Codes = "mean",
    near: Near = "vector",
    query_bits: int = 4,
    num_iterations: int = 10,
    points_per_center: int = 64,
    update_every: int | None = 1,
    pending_rows: int = 1 << 15,
    schedule: int | Callable[[int], bool] = never,
) -> Sampler:
    """The k classes of highest logit that an inverted file with one-bit codes finds: the sampler of ANN Softmax.

    **One set per example** (without ``num_sampled``): the k best of those found, each with expected count 1, like
    ``top_k`` and ``lsh_top_k``: deterministic given the index, and nothing corrects for the classes outside.
    ``log_expected_count`` is 0 for the set and for the labels, -inf for others.

    **Sample grouping** (with ``num_sampled``): each group of examples shares exactly
    ``num_sampled`` distinct classes: what its examples retrieve, all their labels, and uniformly random others. See
    ``grouped`` for the counts; with ``subset_softmax``, which uses none, it is the paper's method.

    The codes of the rows that a step changes follow at once, lists and centres at a refresh. A draw costs
    O(hm_num * dim / 32 + num_kept * dim) per example, an update O(rows * dim), whatever the number of classes.

    Args:
        k: classes per example. None, with ``num_sampled``: as many as fill a group if no class is found twice,
            ``classes_per_example(num_sampled, batch size, num_groups)``.
        num_centers: see ``ivf_index``, as for the arguments not explained here.
        hm_num: codes seen per example (the paper: num_classes / 10).
        num_kept: how many of them are scored exactly (k'; the paper: hm_num / 10, which is the default).
        num_sampled: C_sub, classes per group.
        num_groups: G, groups per batch (1: one shared set); None: one per example. With ``num_sampled`` only.
        codes: "mean" (the paper's), "rotated" or "int8".
        near: "vector" or "logit".
        query_bits: of "rotated" codes.
        num_iterations: of k-means.
        points_per_center: of k-means.
        update_every: 1: after each step the rows it changed get new codes; n: those of n steps get them together, each
            once; None: codes change at refreshes only.
        pending_rows: room for rows that wait, with ``update_every`` > 1: 4 (dim + 1) bytes each, at least as many as
            one step can change. They get their codes sooner if there might be no room for those of another step.
        schedule: when to rebuild centres and lists (the paper: five times an epoch): every so many steps, or
            ``(step) -> bool``.

    Returns:
        A ``Sampler``; its state is an ``IVFState``.

    Raises:
        ValueError: for numbers out of range or arguments that do not belong together.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.array([[1.0, 0.1], [0.9, 0.0], [-1.0, 0.0]]), None, None, jnp.int32(3))
        >>> sampler = cx.samplers.ivf_bq(2, num_centers=2, hm_num=3, num_kept=3)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.array([[2.0, 0.1]]), jnp.array([[2]]), classes)
        >>> sampler.sample(state, jax.random.key(1), query).ids.tolist()
        [[0, 1]]

    Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), section 3.2 and algorithm
        2.
    """
    check_positive("k", k, optional=True)
    if num_sampled is None and num_groups is not None:
        raise ValueError(
            f"expected num_sampled, the classes per group, with num_groups={num_groups}; without both, every example "
            "has a set of its own."
        )
    if num_sampled is None and k is None:
        raise ValueError("expected k, the classes per example, or num_sampled, the classes per group, got neither.")
    index = ivf_index(
        num_centers=num_centers,
        hm_num=hm_num,
        num_kept=num_kept,
        codes=codes,
        near=near,
        query_bits=query_bits,
        num_iterations=num_iterations,
        points_per_center=points_per_center,
        update_every=update_every,
        pending_rows=pending_rows,
    )
    if num_sampled is not None:
        return every(grouped(index, num_sampled=num_sampled, num_groups=num_groups, k=k), schedule)
    assert k is not None
    return retrieved(index, k, schedule=schedule)
