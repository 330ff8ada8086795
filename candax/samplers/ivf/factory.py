"""IVF-BQ: the index, where its arguments are explained, and the sampler of each example's most active classes."""

from collections.abc import Callable

from candax.base import Retriever, Sampler, never, no_follow
from candax.checks import check_positive, checked
from candax.samplers.combinators import every
from candax.samplers.common.keys import Near
from candax.samplers.common.shares import divisible
from candax.samplers.grouping import grouped
from candax.samplers.ivf.codes import Codes
from candax.samplers.ivf.index import IVFIndex
from candax.samplers.retrieved import retrieved


@checked
@divisible("num_centers", "hm_num", "num_kept")
def ivf_index(
    *,
    num_centers: int,
    hm_num: int,
    num_kept: int | None = None,
    codes: Codes = "mean",
    near: Near = "vector",
    query_bits: int = 4,
    num_iterations: int = 10,
    points_per_center: int = 64,
    update_every: int | None = 1,
    pending_rows: int = 1 << 15,
) -> Retriever:
    """An inverted file with short codes (IVF-BQ): approximate search for the largest logits e . w_c + b_c.

    Classes are put into lists by k-means on their normalised vectors. A query visits its nearest lists until about
    ``hm_num`` codes are seen, keeps the ``num_kept`` best by their codes, and scores those exactly, as the head does:
    biases included, cosines where it is normalised.

    **How much is read.** Lists are stored in blocks of at most 128 places, and every query reads the same number of
    whole blocks, 9/8 hm_num / block, perhaps only some of the last list's. The paper visits whole lists, and so more
    than HM_num codes (in figure 2, 12 where HM_num is 10); here the last block of each list is only partly full, so
    the number of classes seen is about hm_num and at most 9/8 of it (rounded up to a block). With ``hm_num`` >=
    num_classes everything is visited, and with ``num_kept`` >= num_classes too the search is exact.

    Args:
        num_centers: lists; 64 to 1024 in the paper.
        hm_num: codes seen per query; the paper's HM_num, num_classes / 10 or / 20 there.
        num_kept: how many of them are scored exactly; the paper's k'. Default: hm_num / 10. A search for k classes
            scores at least k.
        codes: "mean": the paper's, cheapest. "rotated": a random rotation and an estimator without bias, for vectors
            whose coordinates differ in variance or depend on each other; a query takes ``query_bits`` times as many
            comparisons, and a class 8 bytes more, or 12 where biases are added to the estimates. See ``Coder``. "int8":
            a byte per coordinate, for 8 times the memory; estimates are nearly exact, so that hardly more than k need
            be kept, and it is the quickest on a CPU where lists are good. Biases are part of all estimates.
        near: which vectors are clustered and coded: "vector": the class vectors; their lengths and biases play no part
            in the choice of lists, nor in "mean" codes. "logit": class vectors extended by bias and length, so that
            near classes have large logits; for classes that differ much in bias or length. See ``class_keys``.
        query_bits: bits of a query's coordinate, with "rotated" codes.
        num_iterations: of k-means, at the build and at each refresh.
        points_per_center: an iteration of k-means sees at most so many classes per centre.
        update_every: see ``ivf_bq``: 1, n or None.
        pending_rows: see ``ivf_bq``.

    Returns:
        A ``Retriever``, whose functions are to be jitted; its state is an ``IVFState``. To search without labels, call
        ``find(state, embeddings, classes, k)``.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> vectors = jax.random.normal(jax.random.key(0), (1000, 16))
        >>> vectors /= jnp.linalg.norm(vectors, axis=1, keepdims=True)
        >>> classes = cx.Classes(vectors, None, None, jnp.int32(1000))
        >>> index = cx.samplers.ivf_index(num_centers=8, hm_num=1000, num_kept=200)
        >>> state = jax.jit(index.build)(jax.random.key(1), classes)
        >>> scores, ids = jax.jit(index.find, static_argnums=3)(state, 9 * vectors[:3], classes, 5)
        >>> ids[:, 0].tolist()
        [0, 1, 2]

    Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), section 3.2.
    """
    check_positive("hm_num", hm_num)
    kept = max(1, hm_num // 10) if num_kept is None else num_kept
    numbers = (num_centers, hm_num, kept, codes, near, query_bits, num_iterations, points_per_center)
    index = IVFIndex(*numbers, update_every, pending_rows)
    index.check()
    follows = no_follow if update_every is None else index.follow
    of_groups = index.shortlist if codes == "int8" else None
    return Retriever(index.build, index.search, follows, index.refresh, "ivf", shortlist=of_groups)


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
