"""Encoder for questions to a graph: an entity and a relation, before a head whose classes are the entities."""

from typing import Any, Literal, TypeAlias

import jax
from flax import nnx
from jax import numpy as jnp
from jaxtyping import Array, Float, Int

from candax.checks import check_rate, checked
from candax.models.dropout import Dropout
from candax.models.head import Head
from candax.models.output_layer import table_of_words
from candax.rows import Table
from candax.rows.lookups import lookup_in

Product: TypeAlias = Literal["complex", "elementwise", "sum", "rotation"]


class NearEntities(nnx.Module):
    """Class vectors that turn an inner product into a squared distance: ``(2 w, -|w|^2)`` for an entity's vector w.

    With the embedding ``(e, 1)`` the logit is ``2 e.w - |w|^2 = |e|^2 - |e - w|^2``: all classes are ranked by their
    distance to e, and ``|e|^2``, the same for all, changes no softmax. Give it to a head as ``vectors=`` and that head
    to ``LinkEncoder``.

    Args:
        num_entities: rows.
        dim: coordinates of w; the head's vectors have one more.
        scale: the standard deviation of the initial values.
        rngs: ``rngs.params`` draws them.

    Example:
        >>> import candax as cx
        >>> near = NearEntities(100, 8, scale=0.1, rngs=nnx.Rngs(0))
        >>> head = cx.Head(100, vectors=near, biases=False, rngs=nnx.Rngs(1))
        >>> encoder = LinkEncoder(head, 4, product="sum", rngs=nnx.Rngs(2))
    """

    def __init__(self, num_entities: int, dim: int, *, scale: float, rngs: nnx.Rngs) -> None:
        self.entities = Table(scale * jax.random.normal(rngs.params(), (num_entities, dim)))

    def __call__(self, ids: Int[Array, " n"]) -> Float[Array, "n dim_and_one"]:
        """The class vectors of some entities."""
        rows = lookup_in(self, "entities", ids)
        return jnp.concatenate([2 * rows, -jnp.sum(rows**2, axis=1, keepdims=True)], axis=1)


class LinkEncoder(nnx.Module):
    """The entity's vector changed by the relation's, to be compared with all entities: one table for both uses.

    With x of the entity, r of the relation and w_c of a class, the score w_c . e has

        "complex":     e = x r, coordinates by complex numbers (the first half real parts): ComplEx, Re <x, r, conj w>
        "elementwise": e = x * r: DistMult, which cannot tell the two ends of a relation apart
        "sum":         e = x + r: a translation, as in TransE
        "rotation":    e = x exp(i r), complex coordinates turned by angles r: RotatE

    Before a head of ``NearEntities`` the score is -|w_c - e|^2 but for a constant. (TransE and RotatE were published
    with a norm, not its square; a norm cannot be written as an inner product.)

    A relation and its inverse are two (reciprocal relations): "whose heads?" is a question with a relation of its own.

    The batch must have ``entities`` and ``relations``, both int32[B], as ``candax.data.QuestionBatches`` has.

    Args:
        head: whose classes are the entities: with a table of its own, or with ``vectors=NearEntities(...)``.
        num_kinds: relations, inverses included: ``2 * graph.num_relations``.
        product: see above.
        scale: the standard deviation of the relations' initial values; default: 1, or 0.1 for sums. Angles are drawn
            evenly from all, whatever it is.
        dropout: of the coordinates of e in training.
        rngs: ``rngs.params`` initialises relations; ``rngs.dropout`` drops out.

    Raises:
        ValueError: for an odd number of coordinates with complex ones, an unknown product, or no relation.

    Example:
        >>> from flax import nnx
        >>> import candax as cx
        >>> head = cx.Head(1000, 16, rngs=nnx.Rngs(0))
        >>> model = cx.models.Classifier(cx.models.LinkEncoder(head, 8, rngs=nnx.Rngs(1)), head)
        >>> model.encoder.entities is head.vectors
        True

    Source: Trouillon et al., Complex Embeddings for Simple Link Prediction (2016); reciprocal relations: Lacroix et
        al., Canonical Tensor Decomposition for Knowledge Base Completion (2018); Yang et al., Embedding Entities and
        Relations for Learning and Inference in Knowledge Bases (2015), DistMult; Bordes et al. (2013), TransE; Sun et
        al., RotatE: Knowledge Graph Embedding by Relational Rotation in Complex Space (2019).
    """

    @checked
    def __init__(
        self,
        head: Head,
        num_kinds: int,
        *,
        product: Product = "complex",
        scale: float | None = None,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ) -> None:
        near = getattr(head.vectors, "function", None)
        self.near = isinstance(near, NearEntities)
        self.entities = near.entities if isinstance(near, NearEntities) else table_of_words(head, self)
        dim = self.entities.shape[1]
        if num_kinds < 1 or (product in ("complex", "rotation") and dim % 2):
            raise ValueError(
                f"expected num_kinds >= 1, and an even number of coordinates for complex ones, got {num_kinds}, {dim}."
            )
        check_rate("dropout", dropout)
        if scale is not None and not scale > 0:
            raise ValueError(f"expected scale > 0, got {scale}.")
        self.product = product
        key = rngs.params()
        if product == "rotation":
            start = jax.random.uniform(key, (num_kinds, dim // 2), minval=-jnp.pi, maxval=jnp.pi)
        else:
            scale = (0.1 if product == "sum" else 1.0) if scale is None else scale
            start = scale * jax.random.normal(key, (num_kinds, dim))
        self.relations = Table(start)
        self.dropout = Dropout(dropout, rngs=rngs) if dropout else None

    def __call__(self, batch: Any) -> Float[Array, "B dim"]:
        """What the answers' class vectors should be like."""
        return self.asked(*self.rows(batch))

    def rows(self, batch: Any) -> tuple[Float[Array, "B dim"], Float[Array, "B of_relation"]]:
        """The rows of a batch's entities and relations, such as regularisers are about."""
        return lookup_in(self, "entities", batch.entities), lookup_in(self, "relations", batch.relations)

    def asked(
        self, entity: Float[Array, "B dim"], relation: Float[Array, "B of_relation"]
    ) -> Float[Array, "B of_classes"]:
        """The embedding of questions, from their rows."""
        found = self._product(entity, relation)
        if self.dropout is not None:
            found = self.dropout(found)
        return jnp.concatenate([found, jnp.ones_like(found[:, :1])], axis=1) if self.near else found

    def _product(self, entity: Array, relation: Array) -> Array:
        if self.product == "elementwise":
            return entity * relation
        if self.product == "sum":
            return entity + relation
        a, b = jnp.split(entity, 2, axis=1)
        turned = self.product == "rotation"
        c, d = (jnp.cos(relation), jnp.sin(relation)) if turned else jnp.split(relation, 2, axis=1)
        return jnp.concatenate([a * c - b * d, a * d + b * c], axis=1)

    def sizes(self, rows: Float[Array, "B dim"]) -> Float[Array, "B parts"]:
        """Absolute values of the coordinates of entities or relations: with "complex", those of the complex numbers.

        With "rotation" the relations are angles, and of the entities the real and the imaginary parts count each by
        itself.
        """
        if self.product != "complex":
            return jnp.abs(rows)
        a, b = jnp.split(rows, 2, axis=1)
        squares = a**2 + b**2
        # The root has no finite gradient at 0.
        return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)
