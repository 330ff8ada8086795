"""How probable each class is to the model, and how often samplers propose it: comparable once labels are left out.

Weights are float64 [B, num_classes] in NumPy; ``without_labels`` makes distributions of them.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from candax.base import Query, Sampler
from candax.cosines import as_scored
from candax.samplers.common.keys import Near
from candax.samplers.lsh.codes import HashFamily, check_bits, log_not_found
from candax.samplers.lsh.index import Index, QueryVector

# All classes are compared with so many query vectors at a time.
_CHUNK = 32


def model_weights(query: Query) -> Float[np.ndarray, "B num_classes"]:
    """The weights of the softmax, exp(embedding . vector_c + bias_c), up to a factor for each example."""
    classes = query.classes
    logits = query.embeddings @ as_scored(classes.vectors, classes.normalized).T
    logits = logits if classes.biases is None else logits + classes.biases
    logits = jnp.where(jnp.arange(classes.num_classes) < classes.num_valid, logits, -jnp.inf)
    return np.exp(np.asarray(logits - jnp.max(logits, axis=1, keepdims=True), np.float64))


def static_counts(sampler: Sampler, query: Query) -> Float[np.ndarray, "B num_classes"]:
    """The expected counts of a sampler whose counts depend neither on the draw nor on the example.

    Raises:
        ValueError: for other samplers.
    """
    if not sampler.facts.draw_independent:
        raise ValueError("expected a sampler whose counts do not depend on the draw (facts.draw_independent).")
    keys = jax.random.split(jax.random.key(0))
    state = sampler.init(keys[0], query.classes)
    candidates = sampler.sample(state, keys[1], query)
    if len(candidates.ids) != 1:
        raise ValueError(f"expected a sampler with one shared candidate set, got {len(candidates.ids)} groups.")
    ids = jnp.arange(query.classes.num_classes, dtype=jnp.int32)[None]
    counts = np.exp(np.asarray(sampler.log_expected_count(state, candidates, ids, query), np.float64))
    return np.repeat(counts, len(query.labels), axis=0)


def lsh_inclusion(
    query: Query, *, by: QueryVector, hash: HashFamily, near: Near, num_hashes: int, num_tables: int
) -> Float[np.ndarray, "B num_classes"]:
    """Probabilities of being found by an LSH sampler, over draws and over hash functions.

    1 - prod over queries (1 - p^K)^L, with p the probability that one hash function gives a query and class c the same
    value. That is how often ``candax.samplers.lsh`` with the same arguments, ``capacity=None`` and ``num_groups=None``
    has a class among its candidates, if it reads all L tables. Several labels of one example count as independent
    queries; because they share their hash functions, they really find a little less than this says.

    Args:
        query: examples with the classes as they are.
        by: which vector looks for classes, see ``lsh``.
        hash: the family.
        near: what is hashed, see ``lsh``.
        num_hashes: K.
        num_tables: L.

    Returns:
        The probabilities; 0 on padding rows.

    Raises:
        ValueError: if the hash values of a table do not fit into 32 bits.

    Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), theorems 1
        and 2.
    """
    check_bits(num_hashes, hash.num_bits)
    index = _index(by, hash, near)
    # Whichever vector looks for classes: it is compiled once.
    state = _index("embedding", hash, near).build(jax.random.key(0), query.classes)
    ids = jnp.arange(query.classes.num_classes, dtype=jnp.int32)
    valid = ids < query.classes.num_valid
    rows = jnp.where(valid[:, None], index.keys(state, ids, query.classes.vectors), 0.0)
    queries = index.queries(state, query, None)
    example, place = np.nonzero(np.asarray(queries.valid))
    vectors = np.asarray(queries.vectors)[example, place]
    # Examples differ in their number of labels: only real ones cost time.
    vectors = np.pad(vectors, ((0, -len(vectors) % _CHUNK), (0, 0)))
    missed = np.zeros((len(query.labels), len(ids)))
    for start in range(0, len(example), _CHUNK):
        part = _log_missed(hash, num_hashes, num_tables, vectors[start : start + _CHUNK], rows)
        of = example[start : start + _CHUNK]
        np.add.at(missed, of, np.asarray(part, np.float64)[: len(of)])
    return np.where(np.asarray(valid), -np.expm1(missed), 0.0)


def _index(by: QueryVector, hash: HashFamily, near: Near) -> Index:
    """An index of one function in one table: it only serves to say what is hashed of queries and of classes."""
    return Index(by, hash, 1, 1, None, 1, "fifo", None, near)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _log_missed(
    hash: HashFamily,
    num_hashes: int,
    num_tables: int,
    vectors: Float[Array | np.ndarray, "Q dim"],
    rows: Float[Array, "num_classes dim"],
) -> Float[Array, "Q num_classes"]:
    """The log probability that a query misses a class: log (1 - p^K)^L."""
    return log_not_found(num_hashes * hash.log_collision(jnp.asarray(vectors), rows), num_tables)


def without_labels(weights: Float[np.ndarray, "B num_classes"], query: Query) -> Float[np.ndarray, "B num_classes"]:
    """The distributions over the classes that are not labels, in proportion to weights; zeros where nothing is left."""
    weights = weights.copy()
    labels = np.asarray(query.labels)
    example, place = np.nonzero(labels >= 0)
    weights[example, labels[example, place]] = 0
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total > 0, total, 1)


def total_variation(
    p: Float[np.ndarray, "B num_classes"], q: Float[np.ndarray, "B num_classes"]
) -> Float[np.ndarray, " B"]:
    """The distance of two distributions, sum_c max(p_c - q_c, 0): 0 if they are equal, 1 if they share no class.

    Where a sampler proposes nothing, ``q`` is zeros and the distance is 1.

    Example:
        >>> total_variation(np.array([[0.5, 0.5, 0.0]]), np.array([[0.0, 0.5, 0.5]])).tolist()
        [0.5]
    """
    return np.maximum(p - q, 0).sum(axis=1)


def by_rank(
    q: Float[np.ndarray, "B num_classes"], order: Int[np.ndarray, "B num_classes"]
) -> Float[np.ndarray, " num_classes"]:
    """The mean probability, over examples, of an example's first, second, ... class in ``order``."""
    return np.take_along_axis(q, order, axis=1).mean(axis=0)
