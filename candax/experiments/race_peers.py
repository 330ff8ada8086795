"""Output layers that draw no candidates, each in a simple form: what people take instead of a sampled softmax.

Adaptive softmax, hierarchical softmax and MACH, behind the encoder of any recipe. They start from what the recipe's own
head starts from, so that a start from the data (`candax train`) is theirs too.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Int32
from numpy.typing import ArrayLike

from candax.recipes.language.streams import StreamBatch
from candax.rows.lookups import lookup_in
from candax.rows.tables import Constant, Table

PeerName: TypeAlias = Literal["adaptive_softmax", "hierarchical_softmax", "mach"]
# Adaptive softmax: the most frequent sixteenth of the classes has vectors of full width; those up to a quarter have a
# quarter of the coordinates, the rest a sixteenth.
_ENDS, _NARROWER = (1 / 16, 1 / 4, 1.0), 4
# MACH: hash functions, and the buckets of each.
_HASHES, _BUCKETS = 8, 1024


class Start(NamedTuple):
    """What an output layer is made of.

    Attributes:
        vectors: of the classes, at the start of training.
        counts: of the classes in the training data, each at least a small number.
        labels: calls give the labels of each batch, [N, T] padded with -1, of the whole training.
        seed: of what is drawn.
    """

    vectors: Float32[np.ndarray, "C dim"]
    counts: Float[np.ndarray, " C"]
    labels: Callable[[], Iterable[Int[np.ndarray, "N T"]]]
    seed: int

    def pooled(self, ids: Int[np.ndarray, " n"]) -> tuple[Float32[np.ndarray, " dim"], np.float32]:
        """The mean vector of some classes, weighted by their counts, and the logarithm of the sum of these."""
        weights = self.counts[ids]
        total = max(weights.sum(), 1e-9)
        return (weights @ self.vectors[ids] / total).astype(np.float32), np.float32(np.log(total))


class AdaptiveSoftmax(nnx.Module):
    """A softmax over the frequent classes and over clusters of the others, whose vectors are narrower.

    ``p(c) = p(cluster of c) p(c | cluster)`` for a rare class: only examples with a label in a cluster pay for it.

    Source: Grave et al., Efficient softmax approximation for GPUs (2017), without its tuning of the clusters' sizes.
    """

    def __init__(self, start: Start) -> None:
        size, dim = start.vectors.shape
        order = np.argsort(-start.counts, kind="stable")
        ranks = np.empty(size, np.int32)
        ranks[order] = np.arange(size, dtype=np.int32)
        self.ends = tuple(max(number + 1, round(share * size)) for number, share in enumerate(_ENDS))
        self.widths = tuple(max(1, dim // _NARROWER**number) for number in range(len(self.ends)))
        self.ranks = Constant(jnp.asarray(ranks))
        tails = [order[first:last] for first, last in self._tails()]
        pooled = [start.pooled(ids) for ids in tails]
        first = order[: self.ends[0]]
        self.vectors = nnx.Param(jnp.asarray(np.vstack([start.vectors[first], *(vector for vector, _ in pooled)])))
        biases = np.concatenate([np.log(start.counts[first]), [bias for _, bias in pooled]])
        self.biases = nnx.Param(jnp.asarray(biases, jnp.float32))
        self.projections = nnx.List([nnx.Param(jnp.eye(dim, width)) for width in self.widths[1:]])
        narrow = zip(tails, self.widths[1:], strict=True)
        self.tail_vectors = nnx.List([nnx.Param(jnp.asarray(start.vectors[ids, :width])) for ids, width in narrow])
        self.tail_biases = nnx.List([nnx.Param(jnp.asarray(np.log(start.counts[ids]), jnp.float32)) for ids in tails])
        # The most examples of a batch that have a label in each cluster: so many are scored against it in a step.
        most = [0] * len(tails)
        for labels in start.labels():
            of_labels = np.where(labels >= 0, ranks[labels], -1)
            for number, (first_rank, last_rank) in enumerate(self._tails()):
                inside = (of_labels >= first_rank) & (of_labels < last_rank)
                most[number] = max(most[number], int(inside.any(axis=1).sum()))
        self.most = tuple(most)

    def _tails(self) -> list[tuple[int, int]]:
        return list(zip(self.ends, self.ends[1:], strict=False))

    def _tail_logits(self, h: Float[Array, "N dim"], number: int) -> Float[Array, "N C"]:
        narrow = h @ self.projections[number][...]
        return narrow @ self.tail_vectors[number][...].T + self.tail_biases[number][...]

    def __call__(self, h: Float[Array, "N dim"], labels: Int[Array, "N T"]) -> Float[Array, " N"]:
        """The loss of a training batch: the mean of ``-log p(label)`` over an example's labels; 0 for none."""
        return self.nll(h, labels, self.most)

    def nll(
        self, h: Float[Array, "N dim"], labels: Int[Array, "N T"], most: tuple[int, ...] | None = None
    ) -> Float[Array, " N"]:
        """The same of any examples; ``most``: how many of them have a label in each cluster at most."""
        most = (len(h),) * len(self.most) if most is None else most
        ranks = jnp.where(labels >= 0, self.ranks[...][labels], -1)
        clusters = sum((ranks >= end).astype(jnp.int32) for end in self.ends[:-1])
        first = jnp.where(clusters > 0, self.ends[0] + clusters - 1, ranks)
        logs = jax.nn.log_softmax(h @ self.vectors[...].T + self.biases[...])
        total = _mean_nll(jnp.take_along_axis(logs, jnp.maximum(first, 0), axis=1), labels)
        number_of_labels = jnp.maximum(jnp.sum(labels >= 0, axis=1), 1)
        for number, (low, high) in enumerate(self._tails()):
            if not most[number]:
                continue
            inside = (ranks >= low) & (ranks < high)
            (rows,) = jnp.nonzero(inside.any(axis=1), size=most[number], fill_value=len(h))
            own = inside.at[rows].get(mode="fill", fill_value=False)
            logs = jax.nn.log_softmax(self._tail_logits(h.at[rows].get(mode="fill", fill_value=0), number))
            places = jnp.where(own, ranks.at[rows].get(mode="fill", fill_value=low) - low, 0)
            found = jnp.sum(jnp.where(own, jnp.take_along_axis(logs, places, axis=1), 0), axis=1)
            each = found / number_of_labels.at[rows].get(mode="fill", fill_value=1)
            total = total.at[rows].add(-each, mode="drop")
        return total

    def log_probs(self, h: Float[Array, "N dim"]) -> Float[Array, "N C"]:
        """Logarithms of the probabilities of all classes."""
        first = jax.nn.log_softmax(h @ self.vectors[...].T + self.biases[...])
        parts = [first[:, : self.ends[0]]]
        for number in range(len(self._tails())):
            own = jax.nn.log_softmax(self._tail_logits(h, number))
            parts.append(own + first[:, self.ends[0] + number, None])
        return jnp.concatenate(parts, axis=1)[:, self.ranks[...]]


class HierarchicalSoftmax(nnx.Module):
    """A binary decision at each node on the way to a class: ``p(c) = prod_n sigmoid(+-(w_n . h + b_n))``.

    The tree is Huffman's: frequent classes are near its root. A step reads and trains the nodes on its labels' ways.

    Source: Mnih and Hinton, A scalable hierarchical distributed language model (2008); the tree as in word2vec.
    """

    def __init__(self, start: Start) -> None:
        size, dim = start.vectors.shape
        nodes, sides = huffman(start.counts)
        self.nodes, self.sides = Constant(jnp.asarray(nodes)), Constant(jnp.asarray(sides))
        # A node asks whether a class is on its right: it starts from what tells the mean vectors of both sides apart.
        vectors, weights = np.zeros((2, size - 1, dim), np.float32), np.zeros((2, size - 1))
        for depth in range(nodes.shape[1]):
            (there,) = np.nonzero(nodes[:, depth] >= 0)
            place = (sides[there, depth] > 0).astype(int), nodes[there, depth]
            np.add.at(weights, place, start.counts[there])
            np.add.at(vectors, place, start.counts[there, None].astype(np.float32) * start.vectors[there])
        means = vectors / weights[:, :, None]
        self.vectors = Table(jnp.asarray(means[1] - means[0], jnp.float32))
        self.biases = Table(jnp.asarray(np.log(weights[1] / weights[0]), jnp.float32))
        # The most nodes that a batch needs, none among them.
        self.most = 1 + max(len(np.unique(nodes[labels[labels >= 0]])) for labels in start.labels())

    def __call__(self, h: Float[Array, "N dim"], labels: Int[Array, "N T"]) -> Float[Array, " N"]:
        """The loss of a training batch: the mean of ``-log p(label)`` over an example's labels; 0 for none."""
        ways, sides = self._ways(labels)
        ids, places = jnp.unique(ways, return_inverse=True, size=self.most, fill_value=-1)
        logits = h @ lookup_in(self, "vectors", ids).T + lookup_in(self, "biases", ids)
        return self._mean(labels, ways, sides * jnp.take_along_axis(logits, places.reshape(ways.shape), axis=1))

    def nll(self, h: Float[Array, "N dim"], labels: Int[Array, "N T"]) -> Float[Array, " N"]:
        """The same of any examples."""
        ways, sides = self._ways(labels)
        logits = jnp.einsum("nd,nwd->nw", h, self.vectors[...][ways]) + self.biases[...][ways]
        return self._mean(labels, ways, sides * logits)

    def _ways(self, labels: Int[Array, "N T"]) -> tuple[Int[Array, "N W"], Float[Array, "N W"]]:
        """The nodes on the ways to all of an example's labels, -1 for none, and the side that each way takes."""
        nodes = jnp.where(labels[..., None] >= 0, self.nodes[...][labels], -1)
        return nodes.reshape(len(labels), -1), self.sides[...][labels].reshape(len(labels), -1)

    def _mean(
        self, labels: Int[Array, "N T"], ways: Int[Array, "N W"], logits: Float[Array, "N W"]
    ) -> Float[Array, " N"]:
        logs = jnp.where(ways >= 0, jax.nn.log_sigmoid(logits), 0).reshape(*labels.shape, -1)
        return _mean_nll(jnp.sum(logs, axis=2), labels)

    def log_probs(self, h: Float[Array, "N dim"]) -> Float[Array, "N C"]:
        """Logarithms of the probabilities of all classes."""
        logits = h @ self.vectors[...].T + self.biases[...]

        def deeper(total: Array, level: tuple[Array, Array]) -> tuple[Array, None]:
            nodes, sides = level
            return total + jnp.where(nodes >= 0, jax.nn.log_sigmoid(sides * logits[:, nodes]), 0), None

        levels = self.nodes[...].T, self.sides[...].T
        return jax.lax.scan(deeper, jnp.zeros((len(h), len(self.nodes[...]))), levels)[0]


class MACH(nnx.Module):
    """Several small softmaxes over buckets, each with a hash function of its own from classes to buckets.

    With P_r the probability of the bucket of a class by hash function r of R, and B buckets, the class is estimated at
    ``B / (B - 1) (mean_r P_r - 1 / B)``, as far as that is positive, and divided by the sum over all classes.

    Source: Medini et al., Extreme classification in log memory (2019), with one encoder for all hash functions.
    """

    def __init__(self, start: Start) -> None:
        size = len(start.vectors)
        self.number = min(_BUCKETS, max(2, size // 2))
        buckets = np.random.default_rng(start.seed).integers(self.number, size=(_HASHES, size), dtype=np.int32)
        self.buckets = Constant(jnp.asarray(buckets))
        pooled = [[start.pooled(np.nonzero(of == bucket)[0]) for bucket in range(self.number)] for of in buckets]
        self.vectors = nnx.Param(jnp.asarray([[vector for vector, _ in of] for of in pooled]))
        self.biases = nnx.Param(jnp.asarray([[bias for _, bias in of] for of in pooled]))

    def _logs(self, h: Float[Array, "N dim"]) -> Float[Array, "R N B"]:
        return jax.nn.log_softmax(jnp.einsum("nd,rbd->rnb", h, self.vectors[...]) + self.biases[...][:, None])

    def __call__(self, h: Float[Array, "N dim"], labels: Int[Array, "N T"]) -> Float[Array, " N"]:
        """The cross-entropy of the buckets of an example's labels, summed over the hash functions; 0 for none."""
        own = jnp.where(labels >= 0, self.buckets[...][:, labels], 0)
        return _mean_nll(jnp.sum(jnp.take_along_axis(self._logs(h), own, axis=2), axis=0), labels)

    def nll(self, h: Float[Array, "N dim"], labels: Int[Array, "N T"]) -> Float[Array, " N"]:
        """The mean of ``-log p(label)`` over an example's labels, by the estimate; 0 for none."""
        return _mean_nll(jnp.take_along_axis(self.log_probs(h), jnp.maximum(labels, 0), axis=1), labels)

    def log_probs(self, h: Float[Array, "N dim"]) -> Float[Array, "N C"]:
        """Logarithms of the estimated probabilities of all classes."""

        def add(total: Array, of: tuple[Array, Array]) -> tuple[Array, None]:
            logs, buckets = of
            return total + jnp.exp(logs[:, buckets]), None

        total, _ = jax.lax.scan(add, jnp.zeros((len(h), self.buckets.shape[1])), (self._logs(h), self.buckets[...]))
        mean = total / _HASHES
        # A class whose estimate is not positive keeps a little, so that its logarithm is finite.
        likely = jnp.maximum((mean - 1 / self.number) * self.number / (self.number - 1), 1e-3 * mean + 1e-12)
        return jnp.log(likely / jnp.sum(likely, axis=1, keepdims=True))


PEERS: dict[PeerName, Callable[[Start], nnx.Module]] = {
    "adaptive_softmax": AdaptiveSoftmax,
    "hierarchical_softmax": HierarchicalSoftmax,
    "mach": MACH,
}


class Behind(nnx.Module):
    """An encoder and one of these output layers.

    Args:
        encoder: of a recipe's model.
        head: the output layer.
    """

    def __init__(self, encoder: Any, head: Any) -> None:
        self.encoder, self.head = encoder, head

    def __call__(self, batch: Any) -> Float[Array, "... dim"]:
        """Embeddings of a batch."""
        return self.encoder(batch)


def loss_fn(model: Behind, batch: Any) -> tuple[Array, dict[str, Array]]:
    """For ``fit``: the mean over a batch's examples, or words, that have labels."""
    h = model(batch)
    labels = label_sets(batch)
    weight = jnp.sum(jnp.any(labels >= 0, axis=1).astype(h.dtype))
    return jnp.sum(model.head(h.reshape(len(labels), -1), labels)) / jnp.maximum(weight, 1), {"weight": weight}


def _mean_nll(logs: Float[Array, "N T"], labels: Int[Array, "N T"]) -> Float[Array, " N"]:
    """The negative mean of what belongs to labels; 0 for none."""
    return -jnp.sum(jnp.where(labels >= 0, logs, 0), axis=1) / jnp.maximum(jnp.sum(labels >= 0, axis=1), 1)


def label_sets(batch: Any) -> Any:
    """Labels [N, T] of a batch: an example's set, or the one word that follows each place of a text."""
    return batch.labels.reshape(-1, 1) if isinstance(batch, StreamBatch) else batch.labels


def huffman(counts: ArrayLike) -> tuple[Int32[np.ndarray, "C depth"], Float32[np.ndarray, "C depth"]]:
    """The way to each class in a Huffman tree: its inner nodes from the root on, and -1 or 1 for left or right.

    Args:
        counts: of the classes, two or more.

    Returns:
        Nodes, padded with -1, and sides, padded with 0.

    Example:
        >>> nodes, sides = huffman([4, 2, 1])
        >>> nodes.tolist(), sides.tolist()
        ([[0, -1], [0, 1], [0, 1]], [[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]])
    """
    queue = [(float(count), place) for place, count in enumerate(np.asarray(counts))]
    size = len(queue)
    heapq.heapify(queue)
    parents, sides = np.full(2 * size - 1, -1), np.zeros(2 * size - 1, np.float32)
    for node in range(size, 2 * size - 1):
        left, right = heapq.heappop(queue), heapq.heappop(queue)
        for side, (_, place) in ((-1, left), (1, right)):
            parents[place], sides[place] = node, side
        heapq.heappush(queue, (left[0] + right[0], node))
    ways, here = [], np.arange(size)
    while (parents[here] >= 0).any():
        ways.append((parents[here], sides[here]))
        here = np.where(parents[here] >= 0, parents[here], here)
    nodes, turns = (np.stack([way[part] for way in ways], axis=1) for part in (0, 1))
    # Ways begin at the classes and go up, of different lengths: turned round, and moved to the left.
    there = nodes >= 0
    order = np.argsort(np.where(there, -np.arange(nodes.shape[1]), 1), axis=1, kind="stable")
    nodes, turns, there = (np.take_along_axis(of, order, axis=1) for of in (nodes, turns, there))
    # The root is node 0, and those that were joined first come last.
    return np.where(there, 2 * size - 2 - nodes, -1).astype(np.int32), np.where(there, turns, 0).astype(np.float32)
