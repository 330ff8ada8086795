"""The head's side of a class-parallel step: what each device does, mapped over all of them."""

from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from candax.base import KeyArray, SampledLogits, Sampler, State, no_update
from candax.losses.full import all_classes_as_candidates
from candax.models import Drawn, score_rows
from candax.rows import Rowwise, gather_wide
from candax.training.shards import (
    AXIS,
    PARTS,
    Layout,
    Parts,
    Shard,
    Tables,
    draw_on_device,
    first_row,
    for_each_shard,
    joined,
    of_device,
    own_labels,
    parts_of,
    update_on_device,
)

ROWS, ALL = PartitionSpec(AXIS), PartitionSpec()


class Batch(NamedTuple):
    """What samplers see of a batch, on every device: all embeddings (no gradients) and all labels."""

    embeddings: Float[Array, "B dim"]
    labels: Int[Array, "B T"]


class Updated(NamedTuple):
    """Class vectors and biases after a step, their optimizer states, and the samplers' states."""

    rows: tuple[Array, Array | None]
    optimizers: tuple[PyTree, PyTree]
    samplers: State


class ShardedHead:
    """Samplers, scores and updates of a head whose rows are on many devices; all methods are for use under ``jit``.

    Arrays that differ by device have a leading axis over the devices, or are sharded on their rows.
    """

    def __init__(self, layout: Layout, sampler: Sampler | None, by_rows: Rowwise) -> None:
        self.layout = layout
        self.sampler = sampler
        self._by_rows = by_rows
        self._map = partial(jax.shard_map, mesh=layout.mesh)
        # Nobody differentiates samplers and updates, and loops that start from constants would not pass the check.
        self._unchecked = partial(self._map, check_vma=False)

    def build(self, key: KeyArray, tables: Tables, old: State = None) -> State:
        """Every shard's sampler state, stacked: refreshed where there is an old one, else a first one."""
        sampler, layout = self._a_sampler(), self.layout

        def body(key: KeyArray, tables: Tables, old: State) -> State:
            def one(shard: Shard, *state: State) -> State:
                key_shard = jax.random.fold_in(key, shard.number)
                if state:
                    return sampler.refresh(state[0], key_shard, shard.classes)
                return sampler.init(key_shard, shard.classes)

            return for_each_shard(layout, one, tables, () if old is None else (old,))

        return self._unchecked(body, in_specs=(ALL, ROWS, ROWS), out_specs=ROWS)(key, tables, old)

    def draw(
        self, states: State, key: KeyArray, batch: Batch, tables: Tables
    ) -> tuple[Drawn, tuple[Array, Array | None]]:
        """Every device's candidates, and the class vectors and biases that they and its labels need."""
        sampler, layout = self._a_sampler(), self.layout

        def body(
            states: State, key: KeyArray, batch: Batch, tables: Tables
        ) -> tuple[Drawn, tuple[Array, Array | None]]:
            drawn = draw_on_device(layout, sampler, states, key, *batch, tables)
            biases = None if tables.biases is None else gather_wide(tables.biases, drawn.ids)
            return jax.tree.map(lambda leaf: leaf[None], (drawn, (gather_wide(tables.vectors, drawn.ids), biases)))

        specs = (ROWS, ALL, ALL, ROWS)
        return self._unchecked(body, in_specs=specs, out_specs=ROWS)(states, key, batch, tables)

    def score(
        self, embeddings: Float[Array, "B dim"], rows: tuple[Array, Array | None], drawn: Drawn, labels: Array
    ) -> SampledLogits:
        """Logits of the whole batch and the candidates of all devices; differentiable in embeddings and rows."""
        num_classes = self.layout.num_classes

        def body(embeddings: Array, rows: tuple[Array, Array | None], drawn: Drawn, labels: Array) -> Parts:
            (vectors, biases), drawn = jax.tree.map(lambda leaf: leaf[0], (rows, drawn))
            own = own_labels(self.layout, labels)
            return parts_of(score_rows(drawn, embeddings, own, vectors, biases, num_classes=num_classes))

        parts = self._map(body, in_specs=(ALL, ROWS, ROWS, ALL), out_specs=PARTS)(embeddings, rows, drawn, labels)
        return joined(parts, labels, num_classes)

    def score_all(
        self, embeddings: Float[Array, "B dim"], rows: tuple[Array, Array | None], labels: Array
    ) -> SampledLogits:
        """Logits of the whole batch and all classes; differentiable in embeddings and rows."""
        num_classes = self.layout.num_classes

        def body(embeddings: Array, rows: tuple[Array, Array | None], labels: Array) -> Parts:
            classes, own = of_device(self.layout, Tables(*rows, None)), own_labels(self.layout, labels)
            return parts_of(all_classes_as_candidates(embeddings, own, classes, num_classes=num_classes))

        parts = self._map(body, in_specs=(ALL, ROWS, ALL), out_specs=PARTS)(embeddings, rows, labels)
        return joined(parts, labels, num_classes)

    def update(
        self,
        states: State,
        key: KeyArray,
        rounding_keys: tuple[KeyArray, KeyArray | None],
        batch: Batch,
        tables: Tables,
        optimizers: tuple[PyTree, PyTree],
        ids: Int[Array, "D U"],
        grads: tuple[Array, Array | None],
    ) -> Updated:
        """One optimizer step on the drawn rows of every device, in place where donated; samplers are told."""
        sampler, layout = self._a_sampler(), self.layout

        def body(
            states: State,
            key: KeyArray,
            rounding_keys: tuple[KeyArray, KeyArray | None],
            batch: Batch,
            tables: Tables,
            optimizers: tuple[PyTree, PyTree],
            ids: Array,
            grads: tuple[Array, Array | None],
        ) -> Updated:
            ids, grads = jax.tree.map(lambda leaf: leaf[0], (ids, grads))
            first = first_row(layout)
            vectors = self._by_rows.update(grads[0], optimizers[0], tables.vectors, ids, rounding_keys[0], first)
            biases, biases_optimizer = None, None
            if tables.biases is not None and grads[1] is not None:
                of_biases = (grads[1], optimizers[1], tables.biases)
                biases, biases_optimizer = self._by_rows.update(*of_biases, ids, rounding_keys[1], first)[:2]
            if sampler.update is not no_update:
                states = update_on_device(layout, sampler, states, key, *batch, tables, ids, vectors.rows)
            return Updated((vectors.table, biases), (vectors.state, biases_optimizer), states)

        both: Any = (ROWS, ROWS)
        of_optimizers = tuple(self.optimizer_specs(table) for table in (tables.vectors, tables.biases))
        mapped = self._unchecked(
            body,
            in_specs=(ROWS, ALL, ALL, ALL, ROWS, of_optimizers, ROWS, ROWS),
            out_specs=Updated(both, of_optimizers, ROWS),
        )
        return mapped(states, key, rounding_keys, batch, tables, optimizers, ids, grads)

    def optimizer_specs(self, table: Array | jax.ShapeDtypeStruct | None) -> PyTree:
        """For every leaf of a table's optimizer state whether it has rows; None for no table."""
        if table is None:
            return None
        few, more = (
            jax.eval_shape(self._by_rows.init, jax.ShapeDtypeStruct((rows, *table.shape[1:]), table.dtype))
            for rows in (5, 7)
        )
        return jax.tree.map(lambda a, b: ALL if a.shape == b.shape else ROWS, few, more)

    def _a_sampler(self) -> Sampler:
        assert self.sampler is not None, "a loss over all classes draws nothing"
        return self.sampler
