"""The output layer over all classes: class vectors, all logits, the best classes, log probabilities, decoding."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Integer

from candax.base import Classes, KeyArray
from candax.blocks import DEFAULT_BLOCK_SIZE, Transform, streaming_evaluate, streaming_sample
from candax.checks import checked
from candax.cosines import as_scored, widened
from candax.models.computed import ComputedVectors
from candax.models.embed import Embed
from candax.models.predictions import predictions
from candax.rows.lookups import Longer, integer_ids, lookup, whole
from candax.rows.tables import Constant, Placement, Table, normal_table, num_rows, placement_of, table_of


class OutputLayer(nnx.Module):
    """The part of ``cx.Head`` that is about all classes, without a sampler and a loss."""

    num_classes: int
    normalized: bool
    transform: Transform | None
    vectors: Any  # a Table, or ComputedVectors
    biases: Table | None
    counts: Constant | None
    placement: Placement | None

    @property
    def dim(self) -> int:
        """Coordinates of a class vector."""
        return self.vectors.dim if isinstance(self.vectors, ComputedVectors) else self.vectors.shape[1]

    def classes(self) -> Classes:
        """The output layer as samplers see it, of arrays."""
        computed = isinstance(self.vectors, ComputedVectors)
        return self._classes(self.vectors.kept() if computed else whole(self, "vectors"), self._all_biases())

    def _all_biases(self) -> Any:
        return None if self.biases is None else whole(self, "biases")

    def _classes(self, vectors: Any, biases: Any) -> Classes:
        # Another head that shares the table may have grown, and given it more rows than this one has biases and counts.
        rows = vectors.shape[0]
        counts = None if self.counts is None else lengthened(jnp.asarray(self.counts[...]), rows)
        return Classes(vectors, lengthened(biases, rows), counts, jnp.int32(self.num_classes), self.normalized)

    def whole(self) -> Classes:
        """As ``classes``; but class vectors that are computed are computed anew, in blocks, instead of those kept."""
        if isinstance(self.vectors, ComputedVectors):
            return self._classes(self.vectors.all(), self._all_biases())
        return self.classes()

    def _differentiable(self) -> Classes:
        if isinstance(self.vectors, ComputedVectors):
            return self._classes(self.vectors.of(jnp.arange(self.num_classes, dtype=jnp.int32)), self._all_biases())
        return self.classes()

    def __call__(self, h: Float[Array | np.ndarray, "..."]) -> Float[Array, "..."]:
        """All logits ``[..., num_classes]``, float32; differentiable, with a dense gradient of the class vectors."""
        h, classes = self._checked(h), self._differentiable()
        vectors = as_scored(classes.vectors, self.normalized)
        logits = jnp.matmul(as_scored(h, self.normalized), vectors.T, preferred_element_type=jnp.float32)
        if classes.biases is not None:
            logits += widened(classes.biases).reshape(*[1] * (h.ndim - 1), -1)
        logits = logits[..., : self.num_classes]
        return logits if self.transform is None else self.transform(logits)

    @checked
    def top_k(
        self,
        h: Float[Array | np.ndarray, "..."],
        k: int,
        *,
        exclude: Integer[Array | np.ndarray, "..."] | None = None,
        block_size: int = DEFAULT_BLOCK_SIZE,
    ) -> tuple[Float[Array, "..."], Int[Array, "..."]]:
        """The exact k best classes, scored in blocks of classes.

        Args:
            h: embeddings ``[..., dim]``.
            k: how many.
            exclude: ids ``[..., E]`` that are not to be among them (what a user has seen), padded with -1.
            block_size: the most classes scored at a time.

        Returns:
            Logits and int32 ids, ``[..., k]``, best first; -inf and -1 where ``exclude`` leaves fewer than k.
        """
        h = self._checked(h)
        if not 1 <= k <= self.num_classes:
            raise ValueError(f"expected 1 <= k <= {self.num_classes}, the number of classes, got {k!r}.")
        if exclude is not None:
            exclude = integer_ids(exclude, "exclude")
            if exclude.shape[:-1] != h.shape[:-1]:
                raise ValueError(
                    f"expected exclude to be integer ids of shape {[*h.shape[:-1], 'E']}, got {exclude.dtype}"
                    f"{list(exclude.shape)}."
                )
            exclude = exclude.reshape(-1, exclude.shape[-1])
        flat = h.reshape(-1, h.shape[-1])
        scores, ids, _ = self._evaluate(flat, self.whole(), k, block_size, exclude)
        if exclude is not None:
            ids = jnp.where(scores > -jnp.inf, ids, -1)
        return scores.reshape(*h.shape[:-1], k), ids.reshape(*h.shape[:-1], k)

    def log_prob(
        self,
        h: Float[Array | np.ndarray, "..."],
        labels: Integer[Array | np.ndarray, "..."],
        *,
        block_size: int = DEFAULT_BLOCK_SIZE,
    ) -> Float[Array, "..."]:
        """Log probabilities of classes under the softmax over all: ``o_label - log sum exp o``; -inf where -1.

        To be read, not differentiated.

        Args:
            h: embeddings ``[..., dim]``.
            labels: integers ``[...]``, or ``[..., T]`` for several classes per prediction.
            block_size: the most classes scored at a time.

        Returns:
            float32 of the labels' shape.
        """
        h, classes = self._checked(h), self.whole()
        labels = integer_ids(labels, "labels")
        flat = predictions(h, labels, num_classes=None, num_valid=self.num_classes)
        embeddings, ids = h.reshape(-1, h.shape[-1]), labels.reshape(flat.labels.shape)
        ids = jnp.where(ids < self.num_classes, ids, classes.num_classes)
        rows = as_scored(lookup(classes.vectors, ids), self.normalized)
        logits = jnp.einsum(
            "bd,btd->bt", as_scored(embeddings, self.normalized), rows, preferred_element_type=jnp.float32
        )
        if classes.biases is not None:
            logits += widened(lookup(classes.biases, ids))
        logits = logits if self.transform is None else self.transform(logits)
        _, _, normalizer = self._evaluate(embeddings, classes, 0, block_size)
        return jnp.where(ids == -1, -jnp.inf, logits - normalizer[:, None]).reshape(labels.shape)

    @checked
    def sample(
        self, key: KeyArray, h: Float[Array | np.ndarray, "..."], *, block_size: int = DEFAULT_BLOCK_SIZE
    ) -> Int[Array, "..."]:
        """Classes ``[...]`` drawn from the softmax over all of them, for decoding; works in ``lax.scan``."""
        h = self._checked(h)
        flat = h.reshape(-1, h.shape[-1])
        drawn = streaming_sample(key, flat, self.whole(), block_size=block_size, transform=self.transform)
        return drawn.reshape(h.shape[:-1])

    def _evaluate(self, embeddings: Array, classes: Classes, k: int, block_size: int, exclude: Any = None) -> Any:
        """Best scores, their classes and log normalizers; over a mesh each device ranks its own classes."""
        options: dict[str, Any] = {"block_size": block_size, "transform": self.transform, "exclude": exclude}
        place = self.placement
        if place is None or place.mesh is None:
            return streaming_evaluate(embeddings, classes, k, **options)
        return evaluate_sharded(embeddings, classes, mesh=place.mesh, axis=place.axis, k=k, **options)

    def _checked(self, h: Any) -> Float[Array, "..."]:
        h = jnp.asarray(h)
        if not jnp.issubdtype(h.dtype, jnp.floating) or h.ndim < 1 or h.shape[-1] != self.dim:
            raise ValueError(f"expected floating-point embeddings [..., {self.dim}], got {h.dtype}{list(h.shape)}.")
        return h


def mesh_of(classes: Classes) -> tuple[Mesh, str] | None:
    """The mesh and its axis over which the class rows are sharded; None where they are on one device, or are NumPy."""
    sharding = getattr(classes.vectors, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not sharding.spec or not isinstance(sharding.spec[0], str):
        return None
    assert isinstance(sharding.mesh, Mesh)
    return None if sharding.mesh.shape[sharding.spec[0]] == 1 else (sharding.mesh, sharding.spec[0])


@partial(jax.jit, static_argnames=("mesh", "axis", "k", "block_size", "transform"))
def evaluate_sharded(
    embeddings: Float[Array, "B dim"],
    classes: Classes,
    *,
    mesh: Mesh,
    axis: str,
    k: int,
    block_size: int,
    transform: Transform | None = None,
    exclude: Int[Array, "B E"] | None = None,
) -> tuple[Float[Array, "B k"], Int[Array, "B k"], Float[Array, " B"]]:
    """``streaming_evaluate``, with its arguments, of classes whose rows lie over one axis of a mesh.

    The rows are a multiple of the number of devices, each of which scores ``block_size`` classes at a time at most. The
    results are on every device.
    """

    def body(
        embeddings: Array, vectors: Array, biases: Array | None, num_valid: Array, exclude: Array | None
    ) -> tuple[Array, Array, Array]:
        rows = vectors.shape[0]
        first = jax.lax.axis_index(axis) * rows
        own = Classes(vectors, biases, None, jnp.clip(num_valid - first, 0, rows), classes.normalized)
        if exclude is not None:
            local = exclude - first
            exclude = jnp.where((exclude >= 0) & (local >= 0) & (local < rows), local, -1)
        scores, ids, log_normalizer = streaming_evaluate(
            embeddings, own, k, block_size=block_size, transform=transform, exclude=exclude
        )
        return scores, jnp.where(scores > -jnp.inf, ids + first, 0), log_normalizer[:, None]

    everywhere, over_rows, side_by_side = PartitionSpec(), PartitionSpec(axis), PartitionSpec(None, axis)
    specs = (everywhere, over_rows, over_rows, everywhere, everywhere)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=side_by_side, check_vma=False)
    scores, ids, log_normalizers = mapped(embeddings, classes.vectors, classes.biases, classes.num_valid, exclude)
    # Devices are in the order of the ids, so that of equal scores the lower id still comes first.
    scores, at = jax.lax.top_k(scores, k)
    ids = jnp.take_along_axis(ids, at, axis=1)
    found = scores, ids, jax.nn.logsumexp(log_normalizers, axis=1)
    return jax.lax.with_sharding_constraint(found, NamedSharding(mesh, everywhere))


def class_vectors(
    num_classes: int,
    dim: int | None,
    *,
    table: Embed | OutputLayer | Table | None,
    vectors: Callable[..., Array] | None,
    normalized: bool,
    dtype: DTypeLike,
    where: Placement | None,
    rngs: nnx.Rngs,
) -> Table | ComputedVectors:
    """A new table, one that is shared, or what computes class vectors; the arguments are those of ``cx.Head``."""
    if vectors is not None:
        if table is not None or where is not None:
            raise ValueError("expected vectors= without table=, mesh= and num_shards=, got both.")
        return ComputedVectors(vectors, num_classes)
    if table is None:
        if dim is None:
            raise ValueError("expected dim >= 1, the width of class vectors, or table= or vectors=, got none of them.")
        length = 1.0 if normalized else 0.1
        return table_of(normal_table(rngs.params(), (num_classes, dim), length / dim**0.5, jnp.dtype(dtype)), where)
    shared: Any = table
    if isinstance(table, Embed | OutputLayer):
        shared = table.embedding if isinstance(table, Embed) else table.vectors
    if not isinstance(shared, Table):
        raise ValueError(
            "expected table= of a head with a table of class vectors, got one whose class vectors are computed: leave "
            "table= out, and give vectors= the same module."
        )
    if num_rows(shared) < num_classes or dim not in (None, shared.shape[1]):
        raise ValueError(
            f"expected a table of at least {num_classes} rows{'' if dim is None else f' of {dim} numbers'}, got "
            f"one of shape {shared.shape}."
        )
    if where not in (None, of_table := placement_of(shared)):
        raise ValueError(
            f"expected the mesh, axis and num_shards of the table that is shared, {of_table}, got {where}: give them "
            "to the module that makes the table."
        )
    return shared


def table_of_words(head: Any, reader: nnx.Module) -> Table:
    """The table of a head whose class vectors ``reader`` reads as its inputs, too."""
    if isinstance(head.vectors, ComputedVectors):
        raise ValueError(
            f"{type(reader).__name__}: expected a head with a table of class vectors to read inputs from, got one with "
            "computed vectors. Leave vectors= out, or write an encoder that reads inputs from elsewhere."
        )
    return head.vectors


def lengthened(numbers: Any, rows: int) -> Any:
    """One number per class as one per row: an array with zeros for the rows behind, or a table."""
    if numbers is None or numbers.shape[0] == rows:
        return numbers
    return jnp.pad(numbers, (0, rows - len(numbers))) if isinstance(numbers, jax.Array) else Longer(numbers, rows)


def log_prior(counts: Float[Array, " num_classes"] | None, rows: int) -> Float[Array, " rows"]:
    """What biases start at: log((count + 1) / sum), and zeros for rows without a class; without counts zeros."""
    if counts is None:
        return jnp.zeros(rows)
    return lengthened(jnp.log((counts + 1) / jnp.sum(counts + 1)), rows)
