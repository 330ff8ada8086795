"""Evaluation of retrieval: recall@k and nDCG@k over all items, by exact search or by an index."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Integer
from scipy.sparse import csr_array

from candax.base import Classes, Retriever, State
from candax.blocks import DEFAULT_BLOCK_SIZE, streaming_top_k
from candax.checks import check_positive, checked
from candax.samplers.index_files import check_state
from candax.training.metrics import among, nonzero_pattern, retrieval_metrics

# (embeddings, k) -> scores in falling order, -inf where there are fewer, and ids.
Search: TypeAlias = Callable[[Float[Array, "B dim"], int], tuple[Float[Array, "B k"], Int[Array, "B k"]]]

_top_k = jax.jit(streaming_top_k, static_argnums=2, static_argnames="block_size")


@checked
def exact_search(classes: Classes, *, block_size: int = DEFAULT_BLOCK_SIZE) -> Search:
    """Scores all classes, block by block."""
    check_positive("block_size", block_size)
    return lambda embeddings, k: _top_k(embeddings, classes, k, block_size=block_size)


@checked
def index_search(index: Retriever, state: State, classes: Classes) -> Search:
    """Asks an index, such as ``candax.samplers.ivf_index``: it reads a part of the classes, and may miss some."""
    check_state(index, state, classes)
    search = jax.jit(index.find, static_argnums=3)
    return lambda embeddings, k: search(state, embeddings, classes, k)


@checked
def evaluate_retrieval(
    embed_fn: Callable[[Any], Float[Array, "B dim"]],
    search: Search,
    batches: Iterable[tuple[Any, slice | Integer[np.ndarray, " n"]]],
    labels: csr_array,
    *,
    ks: tuple[int, ...] = (10, 100),
    exclude: csr_array | None = None,
) -> dict[str, float]:
    """Recall@k and nDCG@k of the best items of every example, as ``retrieval_metrics`` defines them.

    Args:
        embed_fn: the encoder, from the first item of a batch to embeddings. It should be jitted.
        search: finds the best items: ``exact_search(classes)``, ``index_search(index, state, classes)``, or any other.
        batches: pairs of what ``embed_fn`` takes and the rows of ``labels`` that belong to it; there may be more
            embeddings than rows: those at the end are then padding.
        labels: ``[N, num_items]``, nonzero at the items to find; classes beyond are misses where they are found.
        ks: which k to report.
        exclude: ``[N, num_items]``, nonzero at items to leave out of the ranking, such as those that the user has
            already; the search is asked for that many more. None: nothing is left out.

    Returns:
        ``recall_at_k`` and ``ndcg_at_k`` for every k, and ``num_examples``.

    Raises:
        ValueError: if there is no batch, or shapes disagree.

    Example:
        >>> import jax.numpy as jnp
        >>> classes = Classes(jnp.eye(8), None, None, jnp.array(8))
        >>> has, wants = csr_array(np.eye(8)[:1]), csr_array(np.eye(8)[1:2])
        >>> asked = [(np.array([[2.0, 1, 0, 0, 0, 0, 0, 0]], np.float32), slice(0, 1))]
        >>> evaluate_retrieval(jnp.asarray, exact_search(classes), asked, wants, ks=(1,))["recall_at_1"]
        0.0
        >>> evaluate_retrieval(jnp.asarray, exact_search(classes), asked, wants, ks=(1,), exclude=has)["recall_at_1"]
        1.0
    """
    if exclude is not None and exclude.shape != labels.shape:
        raise ValueError(f"expected exclude of the shape of labels, {labels.shape}, got {exclude.shape}.")
    pattern = None if exclude is None else nonzero_pattern(exclude)
    wanted = max(ks)
    # Enough for the most excluded items of any row; the same for all batches, so that there is one compilation.
    asked = wanted + (0 if pattern is None else int(np.diff(pattern.indptr).max(initial=0)))
    found, every_row = [], []
    for inputs, which in batches:
        rows = np.arange(labels.shape[0])[which]
        embeddings = embed_fn(inputs)
        if embeddings.shape[0] < len(rows):
            raise ValueError(f"expected an embedding for each of {len(rows)} rows, got {embeddings.shape[0]}.")
        scores, ids = search(embeddings, asked)
        top = np.where(np.asarray(scores) > -np.inf, ids, -1)[: len(rows)]
        ranked = top if pattern is None else _without(top, pattern[rows])[:, :wanted]
        # A class without a column is nobody's label: a miss at its rank.
        found.append(np.where(ranked < labels.shape[1], ranked, -1))
        every_row.append(rows)
    if not found:
        raise ValueError("expected at least one batch to evaluate, got none.")
    return retrieval_metrics(np.concatenate(found), labels[np.concatenate(every_row)], ks=ks)


def _without(top_ids: Integer[np.ndarray, "n K"], exclude: csr_array) -> Integer[np.ndarray, "n K"]:
    """The rankings without the excluded items; the others move up, and -1 fills the end."""
    out = (top_ids < 0) | among(top_ids, exclude)
    return np.take_along_axis(np.where(out, -1, top_ids), np.argsort(out, axis=1, kind="stable"), axis=1)
