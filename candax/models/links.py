"""Encoder for questions to a graph: an entity and a relation, before a head whose classes are the entities."""

from typing import Any, Literal, TypeAlias

import jax
from flax import nnx
from jax import numpy as jnp
from jaxtyping import Array, Float

from candax.models.head import Head
from candax.rows import Table, lookup

Product: TypeAlias = Literal["complex", "elementwise", "sum"]


class LinkEncoder(nnx.Module):
    """The entity's vector changed by the relation's, to be compared with all entities: one table for both uses.

    With x of the entity, r of the relation and w_c of a class, the score w_c . e has

        "complex":     e = x r, coordinates by complex numbers (the first half real parts): ComplEx, Re <x, r, conj w>
        "elementwise": e = x * r: DistMult, which cannot tell the two ends of a relation apart
        "sum":         e = x + r: a translation, as in TransE, compared by inner product instead of distance

    A relation and its inverse are two (reciprocal relations): "whose heads?" is a question with a relation of its own.

    The batch must have ``entities`` and ``relations``, both int32[B], as ``candax.data.QuestionBatches`` has.

    Args:
        head: whose classes are the entities.
        num_kinds: relations, inverses included: ``2 * graph.num_relations``.
        product: see above.
        rngs: ``rngs.params`` initialises relations: normal with standard deviation 1, or 0.1 where they are added.

    Raises:
        ValueError: for an odd number of coordinates with "complex", an unknown product, or no relation.

    Example:
        >>> from flax import nnx
        >>> import candax as cx
        >>> head = cx.Head(1000, 16, rngs=nnx.Rngs(0))
        >>> model = cx.models.Classifier(cx.models.LinkEncoder(head, 8, rngs=nnx.Rngs(1)), head)
        >>> model.encoder.entities is head.vectors
        True

    Source: Trouillon et al., Complex Embeddings for Simple Link Prediction (2016); reciprocal relations: Lacroix et
        al., Canonical Tensor Decomposition for Knowledge Base Completion (2018); Yang et al., Embedding Entities and
        Relations for Learning and Inference in Knowledge Bases (2015), DistMult; Bordes et al. (2013), TransE.
    """

    def __init__(self, head: Head, num_kinds: int, *, product: Product = "complex", rngs: nnx.Rngs) -> None:
        dim = head.vectors.shape[1]
        if product not in ("complex", "elementwise", "sum"):
            raise ValueError(f"expected product to be 'complex', 'elementwise' or 'sum', got {product!r}.")
        if num_kinds < 1 or (product == "complex" and dim % 2):
            raise ValueError(
                f"expected num_kinds >= 1, and an even number of coordinates for complex ones, got {num_kinds}, {dim}."
            )
        self.product = product
        self.entities: Table = head.vectors
        scale = 0.1 if product == "sum" else 1.0
        self.relations = Table(scale * jax.random.normal(rngs.params(), (num_kinds, dim)))

    def __call__(self, batch: Any) -> Float[Array, "B dim"]:
        """What the answers' class vectors should be like."""
        entity, relation = lookup(self.entities, batch.entities), lookup(self.relations, batch.relations)
        if self.product == "elementwise":
            return entity * relation
        if self.product == "sum":
            return entity + relation
        (a, b), (c, d) = jnp.split(entity, 2, axis=1), jnp.split(relation, 2, axis=1)
        return jnp.concatenate([a * c - b * d, a * d + b * c], axis=1)
