"""An inverted file with short codes of class vectors: built, updated by rows, searched."""

import dataclasses
import functools
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from candax.base import Classes, KeyArray, Query, pytree, static_field
from candax.blocks import Block, walk
from candax.checks import check_positive
from candax.cosines import as_scored, unit
from candax.samplers.common.keys import Near, class_keys, longest_key, query_keys
from candax.samplers.common.kmeans import Points, kmeans, nearest, rows_at_once
from candax.samplers.common.pending import Pending, nothing_pending, wait_or_move
from candax.samplers.ivf.bytes import Bytes, no_bytes, search_bytes, shortlist_bytes, write_bytes
from candax.samplers.ivf.codes import Codebook, Coder, Codes, search_bits
from candax.samplers.ivf.lists import Lists, arrange, block_size, list_of, num_blocks, visit
from candax.samplers.ivf.pooled import pooled_bytes

# Codes are made for so many numbers of class rows at a time.
_ENCODED = 1 << 20
# Up to so many centres the start is k-means++, whose cost grows with their square.
_PLUS_PLUS = 4096
# Groups that together want at least 1 / _MUCH of the places are served by one product over all codes.
_MUCH = 2

Held: TypeAlias = UInt32[Array, "blocks record block"] | Bytes


@pytree
class IVFState:
    """Centres, lists, codes, and updates since the lists were built.

    About num_classes * (8 + width / 8) bytes with "mean" codes, 8 or 12 more per class with "rotated" ones, and
    num_classes * (12 + dim) bytes with "int8" codes, 4 more with biases.

    Attributes:
        centers: of length 1, turned like the keys.
        lists: which class is where.
        codes: what each place holds of its class; the words of a block of one-bit codes stand next to each other.
        book: what codes are made with.
        num_valid: classes; rows behind them are in no list.
        updates: since the last refresh.
        biases: those of the last refresh, if keys are extended by them.
        longest: the largest length of class vectors then, biases included, if keys are extended by it.
        pending: rows that have changed and wait for their codes, where those of several steps are made together.
        normalized: whether the head was normalised at the build.
    """

    centers: Float[Array, "centers width"]
    lists: Lists
    codes: Held
    book: Codebook
    num_valid: Int[Array, ""]
    updates: Int[Array, ""]
    biases: Float[Array, " num_classes"] | None
    longest: Float[Array, ""] | None
    pending: Pending | None = None
    normalized: bool = static_field(default=False)


class IVFIndex(NamedTuple):
    """The static numbers of an index, which ``ivf_index`` makes and explains, and the functions of a ``Retriever``."""

    num_centers: int
    hm_num: int
    num_kept: int
    codes: Codes
    near: Near
    query_bits: int
    num_iterations: int
    points_per_center: int
    update_every: int | None = 1
    pending_rows: int = 1

    def check(self) -> None:
        """Raises ValueError for numbers out of range."""
        numbers = ("num_centers", "hm_num", "num_kept", "query_bits", "num_iterations", "points_per_center")
        for name in (*numbers, "pending_rows"):
            check_positive(name, getattr(self, name))
        check_positive("update_every", self.update_every, optional=True)
        if self.query_bits > 8:
            raise ValueError(f"expected query_bits from 1 to 8, got {self.query_bits}.")
        if self.num_kept > self.hm_num:
            raise ValueError(
                f"expected num_kept <= hm_num, got num_kept={self.num_kept} to be kept of hm_num={self.hm_num} codes."
            )

    @property
    def _coder(self) -> Coder:
        return Coder(self.codes, self.query_bits)

    def _extends(self, classes: Classes) -> bool:
        """Whether keys are extended, see ``longest_key``."""
        return self.near == "logit" and not classes.normalized

    def _keeps_biases(self, classes: Classes) -> bool:
        """Whether codes hold the biases, to add them to the estimates."""
        if self.codes == "int8":
            return classes.biases is not None
        return self.codes == "rotated" and not self._extends(classes) and classes.biases is not None

    def build(self, key: KeyArray, classes: Classes) -> IVFState:
        """Centres, lists and codes of all valid classes.

        O(num_classes * num_centers * dim), by blocks: beside the state and 12 bytes per class for sorting it holds a
        few million numbers. The key is for k-means, and for the rotation. To be jitted.
        """
        key_book, key_centers = jax.random.split(key)
        width = classes.vectors.shape[1] + (2 if self._extends(classes) else 0)
        block = block_size(classes.num_classes, self.num_centers)
        blocks = num_blocks(classes.num_classes, self.num_centers, block)
        codes: Held
        if self.codes == "int8":
            codes = no_bytes(blocks, block, classes.vectors.shape[1], self._keeps_biases(classes))
        else:
            codes = jnp.zeros((blocks, self._coder.record(width, self._keeps_biases(classes)), block), jnp.uint32)
        start: Literal["k-means++", "sampled"] = "k-means++" if self.num_centers <= _PLUS_PLUS else "sampled"
        return self._fill(key_centers, classes, self._coder.new(key_book, width), codes, start)

    def refresh(self, state: IVFState, key: KeyArray, classes: Classes) -> IVFState:
        """Builds anew from the present classes; k-means starts from the old centres, and the rotation stays."""
        return self._fill(key, classes, state.book, state.codes, state.centers)

    def _fill(
        self,
        key: KeyArray,
        classes: Classes,
        book: Codebook,
        codes: Held,
        start: Literal["k-means++", "sampled"] | Float[Array, "centers width"],
    ) -> IVFState:
        coder = self._coder
        longest = longest_key(classes, self.near)

        def turned(vectors: Float[Array, "n dim"], biases: Float[Array, " n"] | None) -> Float[Array, "n width"]:
            return coder.turn(book, class_keys(vectors, biases, longest))

        def take(ids: Int[Array, " n"]) -> Float[Array, "n width"]:
            vectors = as_scored(classes.vectors[ids], classes.normalized)
            return turned(vectors, None if classes.biases is None else classes.biases[ids])

        centers = kmeans(
            key,
            Points(take, jnp.maximum(classes.num_valid, 1), classes.num_classes),
            self.num_centers,
            num_iterations=self.num_iterations,
            points_per_center=self.points_per_center,
            start=start,
        )

        def assign(carry: tuple[Array, Array], block: Block) -> tuple[Array, Array]:
            vectors = turned(block.vectors, block.biases)
            which, _ = nearest(centers, vectors)
            which = jnp.where(block.valid, which, self.num_centers)
            total = jnp.sum(jnp.where(block.fresh[:, None], unit(vectors), 0.0), axis=0)
            return jax.lax.dynamic_update_slice_in_dim(carry[0], which, block.start, axis=0), carry[1] + total

        begin = (jnp.zeros(classes.num_classes, jnp.int32), jnp.zeros(centers.shape[1]))
        at_once = rows_at_once(self.num_centers)
        assigned, total = walk(classes, jnp.dtype(jnp.float32), assign, begin, block_size=at_once)
        lists = arrange(assigned, self.num_centers, block_size(classes.num_classes, self.num_centers))
        if book.mean is not None:
            book = Codebook(total / jnp.maximum(classes.num_valid, 1).astype(total.dtype), None, None)

        def encode(codes: Held, block: Block) -> Held:
            place, which = (
                jax.lax.dynamic_slice_in_dim(part, block.start, block.valid.shape[0])
                for part in (lists.places, assigned)
            )
            biases = block.biases if self._keeps_biases(classes) else None
            if isinstance(codes, Bytes):
                return write_bytes(codes, place, block.vectors, biases)
            center = centers[jnp.minimum(which, self.num_centers - 1)]
            return _write(codes, place, coder.encode(book, turned(block.vectors, block.biases), center, biases))

        at_once = max(128, _ENCODED // centers.shape[1])
        codes = walk(classes, jnp.dtype(jnp.float32), encode, codes, block_size=at_once)
        # A copy, because the training step donates both the biases and the state, and no buffer may be donated twice.
        copied = None if longest is None or classes.biases is None else jnp.array(classes.biases, copy=True)
        number = classes.num_valid.astype(jnp.int32)
        waiting = nothing_pending(self.pending_rows, classes, self.update_every)
        return IVFState(centers, lists, codes, book, number, jnp.int32(0), copied, longest, waiting, classes.normalized)

    def follow(
        self, state: IVFState, key: KeyArray, row_ids: Int[Array, " U"], rows: Float[Array, "U dim"]
    ) -> IVFState:
        """New codes for changed rows; each stays in its list, and biases are those of the last refresh.

        O(U * dim), whatever the number of classes; in place on a donated state.
        """
        del key
        updates, num_valid, recode = state.updates + 1, state.num_valid, functools.partial(self._recode, state)
        codes, pending = wait_or_move(
            state.pending, updates, row_ids, rows, num_valid, every=self.update_every, move=recode, index=state.codes
        )
        return dataclasses.replace(state, codes=codes, updates=updates, pending=pending)

    def _recode(
        self,
        state: IVFState,
        codes: Held,
        ids: Int[Array, " n"],
        vectors: Float[Array, "n dim"],
    ) -> Held:
        """``codes``, in which these classes have new ones; of ``state`` everything else is used."""
        lists, coder, block = state.lists, self._coder, state.lists.ids.shape[1]
        place = lists.places.at[ids].get(mode="fill", fill_value=lists.ids.size)
        place = jnp.where(ids < state.num_valid, place, lists.ids.size)
        if isinstance(codes, Bytes):
            return write_bytes(codes, place, as_scored(vectors, state.normalized), None)
        number, inside = jnp.minimum(place // block, lists.ids.shape[0] - 1), place % block
        biases = None if state.biases is None else state.biases.at[ids].get(mode="fill", fill_value=0.0)
        keys = coder.turn(state.book, class_keys(as_scored(vectors, state.normalized), biases, state.longest))
        old = codes[number, :, inside]
        kept = None
        if old.shape[1] > coder.record(keys.shape[1], has_bias=False):
            kept = jax.lax.bitcast_convert_type(old[:, -1], jnp.float32)
        center = state.centers[list_of(lists.first_block, number)]
        return _write(codes, place, coder.encode(state.book, keys, center, kept))

    def num_reads(self, state: IVFState) -> int:
        """Blocks read per query: an eighth more places than ``hm_num``, as a list's last block is filled in part."""
        blocks, block = state.lists.ids.shape
        if self.hm_num >= state.lists.places.shape[0]:
            return blocks
        return min(blocks, -(-9 * self.hm_num // (8 * block)))

    def search(self, state: IVFState, query: Query, k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
        """The k best classes of each embedding among those of its nearest lists.

        Reads the codes of about ``hm_num`` classes, takes the ``num_kept`` (or k, if that is more) of them that seem
        best by their codes, scores these exactly, and keeps the k best. Some embeddings are searched at a time, so that
        scratch stays at 4 million numbers. To be jitted.
        """
        embeddings, classes = query.embeddings, query.classes
        reads, coder = self.num_reads(state), self._coder
        keys = coder.turn(state.book, query_keys(embeddings, classes, state.longest is not None))
        similar = keys @ state.centers.T
        seen = visit(state.lists, similar, reads)
        kept = min(max(k, self.num_kept), reads * state.lists.ids.shape[1])
        if isinstance(state.codes, Bytes):
            scored = as_scored(embeddings.astype(jnp.float32), classes.normalized)
            scores, ids = search_bytes(state.codes, state.lists, seen, scored, classes, kept, min(k, kept))
        else:
            similar = jnp.take_along_axis(similar, seen.lists, axis=1)
            asked, sizes = coder.ask(state.book, keys), (keys.shape[1], kept, min(k, kept))
            scores, ids = search_bits(
                coder, state.codes, state.lists, seen, asked, similar, embeddings, classes, *sizes
            )
        short = ((0, 0), (0, k - scores.shape[1]))
        return jnp.pad(scores, short, constant_values=-jnp.inf), jnp.pad(ids, short)

    def shortlist(
        self, state: IVFState, query: Query, groups: int, k: int, number: int
    ) -> tuple[Float[Array, "G n"], Int[Array, "G n"]]:
        """What ``grouped`` needs, by codes of one byte alone: see ``Retriever.shortlist``."""
        assert isinstance(state.codes, Bytes)
        embeddings, classes = query.embeddings, query.classes
        places = state.lists.ids.size
        scored = as_scored(embeddings.astype(jnp.float32), classes.normalized)
        # No more than a group's examples want together, if no two of them want the same class.
        number = min(number, k * embeddings.shape[0] // groups, places)
        if _MUCH * groups * number >= places:
            return pooled_bytes(state.codes, state.lists, scored, groups, k, number)
        reads = self.num_reads(state)
        keys = query_keys(embeddings, classes, state.longest is not None)
        seen = visit(state.lists, keys @ state.centers.T, reads)
        most = min(k, reads * state.lists.ids.shape[1])
        scores, ids = shortlist_bytes(state.codes, state.lists, seen, scored, most)
        return scores.reshape(groups, -1), ids.reshape(groups, -1)


def _write(
    codes: UInt32[Array, "blocks record block"], place: Int[Array, " n"], made: UInt32[Array, "n record"]
) -> UInt32[Array, "blocks record block"]:
    """Writes codes at places; those beyond all blocks are dropped."""
    block = codes.shape[2]
    return codes.at[place // block, :, place % block].set(made, mode="drop")
