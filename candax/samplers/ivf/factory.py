"""The factory of an index, where its arguments are explained."""

from jaxtyping import Array

from candax.base import KeyArray, Query, Retriever, no_follow
from candax.checks import check_positive, checked
from candax.samplers.common.keys import Near
from candax.samplers.common.shares import divisible
from candax.samplers.ivf.codes import Codes
from candax.samplers.ivf.index import IVFIndex, IVFState


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

    def search(state: IVFState, query: Query, k: int) -> tuple[Array, Array]:
        return index.search(state, query.embeddings, query.classes, k)

    def follow(state: IVFState, key: KeyArray, row_ids: Array, rows: Array) -> IVFState:
        del key
        return index.update(state, row_ids, rows)

    def shortlist(state: IVFState, query: Query, groups: int, k: int, number: int) -> tuple[Array, Array]:
        return index.shortlist(state, query.embeddings, query.classes, groups, k, number)

    follows = no_follow if update_every is None else follow
    of_groups = shortlist if codes == "int8" else None
    return Retriever(index.build, search, follows, index.refresh, "ivf", shortlist=of_groups)
