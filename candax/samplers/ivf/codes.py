"""Codes of one bit per coordinate: mean binarisation, and random rotation with an unbiased estimator.

Both compare by counting the bits in which two words differ. "mean" compares one word of the class with one of the
query; "rotated" compares it with each bit plane of a query of a few bits, and adds two numbers of the class. A search
reads the blocks of a query together, and scores its best classes exactly.
"""

from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int16, Int32, UInt32

from candax.base import Classes, KeyArray, pytree
from candax.cosines import unit
from candax.samplers.common.scoring import logits_of
from candax.samplers.common.selection import GAP_BITS, WORD, gaps, pack_bits, smallest
from candax.samplers.ivf.lists import Lists, Visit

Codes: TypeAlias = Literal["mean", "rotated", "int8"]

# So many queries are searched at a time that the codes and rows read together hold about this many numbers.
_SCRATCH = 1 << 22


@pytree
class Codebook:
    """What codes are made with.

    Attributes:
        mean: the threshold of each bit; None unless codes are "mean".
        rotation: a random orthogonal matrix, applied to keys as ``rotation @ key``; None unless codes are "rotated".
        dither: in [0, 1), added to a query's coordinates before they are rounded down; None unless "rotated".
    """

    mean: Float[Array, " width"] | None
    rotation: Float[Array, "width width"] | None
    dither: Float[Array, " width"] | None


class Asked(NamedTuple):
    """Queries as bit planes, lowest first; and what a unit of their coordinates is worth."""

    planes: UInt32[Array, "B planes words"]
    step: Float[Array, " B"]


class Coder(NamedTuple):
    """How keys become codes, and how codes and queries become keys to sort by.

    **mean**: bit i says that coordinate i of the normalised key exceeds that of the mean of all normalised keys, for
    classes and queries alike; the nearest differ in the fewest bits.

    **rotated**: keys, centres and queries are turned by a random rotation. With c the centre of a class's list, v its
    key, a = <v, c>, r = v - a c, and s the signs of the coordinates of r,

        <q, v> = a <q, c> + <q, r>,    <q, r> ~ |r|^2 / |r|_1 * <s, q - <q, c> c>.

    The estimate of <q, r> has mean <q, r> over the rotation: with o = r / |r| it is |r| <s, q'> / <s, o>, where
    s / sqrt(width) is the quantised o, <s, o> / sqrt(width) the correction factor, and q' the part of the query that is
    orthogonal to c. So a class holds its bits and two numbers, A = a - B <s, c> and B = |r|^2 / |r|_1 (and its bias,
    unless keys hold it), and the estimate is <q, c> A + <s, q> B. The query's coordinates are rounded to ``query_bits``
    bits, up or down by a fixed random threshold, which is unbiased over that threshold.

    Source: mean: Zhao et al., ANN Softmax (2021), section 3.2.1; rotated: Gao and Long, RaBitQ: Quantizing
        High-Dimensional Vectors with a Theoretical Error Bound for Approximate Nearest Neighbor Search (2024), with
        residuals orthogonal to the centre, so that one rounding of the query serves all lists.
    """

    codes: Codes
    query_bits: int

    def record(self, width: int, has_bias: bool) -> int:
        """Words of bits and numbers per class."""
        extra = 2 + has_bias if self.codes == "rotated" else 0
        return -(-width // WORD) + extra

    def new(self, key: KeyArray, width: int) -> Codebook:
        """A codebook; the mean is still 0."""
        if self.codes == "mean":
            return Codebook(jnp.zeros(width, jnp.float32), None, None)
        if self.codes == "int8":
            return Codebook(None, None, None)
        key_rotation, key_dither = jax.random.split(key)
        q, r = jnp.linalg.qr(jax.random.normal(key_rotation, (width, width), jnp.float32))
        # With the signs of r's diagonal every orthogonal matrix is as likely as every other.
        dither = jax.random.uniform(key_dither, (width,), jnp.float32)
        return Codebook(None, jnp.where(jnp.diagonal(r) < 0, -q, q), dither)

    def turn(self, book: Codebook, keys: Float[Array, "n width"]) -> Float[Array, "n width"]:
        """Keys as they are encoded: rotated, if there is a rotation."""
        if book.rotation is None:
            return keys
        return jnp.matmul(keys, book.rotation.T, precision=jax.lax.Precision.HIGHEST)

    def encode(
        self,
        book: Codebook,
        keys: Float[Array, "n width"],
        centers: Float[Array, "n width"],
        biases: Float[Array, " n"] | None,
    ) -> UInt32[Array, "n record"]:
        """Codes of turned keys, given the centre of each one's list, and biases to be added to estimates."""
        if self.codes == "mean":
            assert book.mean is not None
            return pack_bits(unit(keys) > book.mean)
        along = jnp.sum(keys * centers, axis=1)
        rest = keys - along[:, None] * centers
        positive = rest > 0
        norm1 = jnp.sum(jnp.abs(rest), axis=1)
        factor = jnp.where(norm1 > 0, jnp.sum(rest * rest, axis=1) / jnp.where(norm1 > 0, norm1, 1.0), 0.0)
        signs = jnp.where(positive, 1.0, -1.0)
        numbers = [along - factor * jnp.sum(signs * centers, axis=1), factor]
        if biases is not None:
            numbers.append(biases.astype(jnp.float32))
        extra = jax.lax.bitcast_convert_type(jnp.stack(numbers, axis=1).astype(jnp.float32), jnp.uint32)
        return jnp.concatenate([pack_bits(positive), extra], axis=1)

    def ask(self, book: Codebook, queries: Float[Array, "B width"]) -> Asked:
        """Bit planes of turned queries."""
        if self.codes == "mean":
            assert book.mean is not None
            return Asked(pack_bits(unit(queries) > book.mean)[:, None], jnp.ones(queries.shape[0]))
        assert book.dither is not None
        # Odd multiples of the step, from -most to most.
        most = (1 << self.query_bits) - 1
        step = jnp.max(jnp.abs(queries), axis=1) / most
        scaled = queries / jnp.where(step > 0, step, 1.0)[:, None]
        level = jnp.clip(jnp.floor((scaled + most) / 2 + book.dither), 0, most).astype(jnp.uint32)
        planes = [pack_bits((level >> j) & 1 > 0) for j in range(self.query_bits)]
        return Asked(jnp.stack(planes, axis=1), step)

    def sort_keys(
        self,
        codes: UInt32[Array, "R record block"],
        valid: Bool[Array, "R block"],
        planes: UInt32[Array, "planes words"],
        step: Float[Array, ""],
        similar: Float[Array, " R"],
        width: int,
    ) -> tuple[Int16[Array, "R block"], int]:
        """Small integers that rise as the estimated logit falls, largest where not valid; and how many bits they have.

        Args:
            codes: of the classes in R blocks.
            valid: False for places without a class.
            planes: of one query.
            step: of one query.
            similar: inner product of the query with the centre of each block's list.
            width: of the keys.

        Returns:
            Keys for ``smallest``, and their number of bits.
        """
        if self.codes == "mean":
            differ = hamming(codes, planes)
            return jnp.where(valid, differ, width + 1).astype(jnp.int16), (width + 1).bit_length()
        estimate = self.estimate(codes, planes, step, similar, width)
        return gaps(jnp.where(valid, estimate, -jnp.inf)), GAP_BITS

    def estimate(
        self,
        codes: UInt32[Array, "R record block"],
        planes: UInt32[Array, "planes words"],
        step: Float[Array, ""],
        similar: Float[Array, " R"],
        width: int,
    ) -> Float[Array, "R block"]:
        """Estimated logits, with "rotated" codes."""
        most = (1 << self.query_bits) - 1
        signed = (width * most - 2 * hamming(codes, planes)).astype(jnp.float32) * step
        numbers = jax.lax.bitcast_convert_type(codes[:, planes.shape[1] :], jnp.float32)
        estimate = similar[:, None] * numbers[:, 0] + signed * numbers[:, 1]
        return estimate + numbers[:, 2] if numbers.shape[1] > 2 else estimate


def hamming(codes: UInt32[Array, "R record block"], planes: UInt32[Array, "planes words"]) -> Int32[Array, "R block"]:
    """sum_j 2^j (number of bits in which a code differs from plane j).

    Example:
        >>> import jax.numpy as jnp
        >>> codes = jnp.array([[[0b1100, 0b0000]]], jnp.uint32)  # two classes of one word in a block
        >>> hamming(codes, jnp.array([[0b1010]], jnp.uint32)).tolist()
        [[2, 2]]
    """
    bits = codes[:, : planes.shape[1]]
    total = jnp.zeros((codes.shape[0], codes.shape[2]), jnp.int32)
    for j in range(planes.shape[0]):
        differ = jax.lax.population_count(bits ^ planes[j][:, None])
        total = total + (jnp.sum(differ, axis=1, dtype=jnp.uint32).astype(jnp.int32) << j)
    return total


def search_bits(
    coder: Coder,
    codes: UInt32[Array, "blocks record block"],
    lists: Lists,
    seen: Visit,
    asked: Asked,
    similar: Float[Array, "B R"],
    embeddings: Float[Array, "B dim"],
    classes: Classes,
    width: int,
    kept: int,
    k: int,
) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Takes from the blocks that each query reads the ``kept`` best classes by code, and of these the k best by score.

    Args:
        coder: made the codes.
        codes: of all classes.
        lists: where they are.
        seen: what is read.
        asked: the queries as bit planes.
        similar: inner product of each query with the centre of each block's list.
        embeddings: of any length.
        classes: the output layer now: what is scored.
        width: of the keys.
        kept: how many are scored exactly; at least k.
        k: at most as many as are read.

    Returns:
        Scores in falling order, and ids; slots without a class have score -inf and id 0.
    """
    block, dim = lists.ids.shape[1], embeddings.shape[1]
    scratch = seen.blocks.shape[1] * block * (codes.shape[1] + 2) + kept * dim
    at_once = max(1, min(_SCRATCH // scratch, embeddings.shape[0]))

    def one(query: tuple[Array, Asked, Visit, Array]) -> tuple[Array, Array]:
        embedding, asked, seen, similar = query
        valid = jnp.arange(block) < seen.filled[:, None]
        of_blocks = codes[seen.blocks]
        order, bits = coder.sort_keys(of_blocks, valid, asked.planes, asked.step, similar, width)
        position = smallest(order.reshape(-1), kept, bits)
        read, inside = position // block, position % block
        real = inside < seen.filled[read]
        ids = jnp.where(real, lists.ids[seen.blocks[read], inside], 0)
        logits = jnp.where(real, logits_of(embedding, ids, classes), -jnp.inf)
        scores, best = jax.lax.top_k(logits, k)
        return scores, jnp.where(scores > -jnp.inf, ids[best], 0)

    return jax.lax.map(one, (embeddings, asked, seen, similar), batch_size=at_once)
