"""Classes over devices: who owns which class, and what a device does with its own classes alone.

The classes are cut into shards of equally many rows (the last ones may end in padding), and the shards are dealt to
the devices in order. A shard has a sampler state of its own and draws with a key of its own, so candidates depend on
the number of shards and not on how many devices hold them.

What works on ``Tables`` and draws runs inside ``shard_map``, on one device's part, without communication.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree

from candax.base import Candidates, Classes, KeyArray, Query, SampledLogits, Sampler, State
from candax.models import Drawn
from candax.rows import unique_rows

AXIS = "classes"


def class_mesh(num_devices: int | None = None) -> Mesh:
    """The mesh of class-parallel training: one axis, over the first ``num_devices`` devices (None: all).

    Raises:
        ValueError: if there are fewer devices.

    Example:
        >>> import candax as cx
        >>> cx.training.class_mesh(1).axis_names
        ('classes',)
    """
    devices = jax.devices()
    number = len(devices) if num_devices is None else num_devices
    if not 1 <= number <= len(devices):
        raise ValueError(
            f"expected 1 to {len(devices)} devices, as many as there are, got {number}. On a CPU, "
            "XLA_FLAGS=--xla_force_host_platform_device_count=8 makes 8 of one."
        )
    return Mesh(np.array(devices[:number]), (AXIS,))


class Layout(NamedTuple):
    """Which device holds which class: shard s has the ids from ``s * rows`` on, ``rows`` of them.

    Attributes:
        mesh: of one axis, over the devices.
        num_shards: a multiple of the number of devices.
        num_classes: valid classes; ids from there on are padding.
        normalized: the head is: its logits are cosines.
    """

    mesh: Mesh
    num_shards: int
    num_classes: int
    normalized: bool

    @property
    def rows(self) -> int:
        """Rows of a shard."""
        return -(-self.num_classes // self.num_shards)

    @property
    def num_rows(self) -> int:
        """Rows of the whole table, padding included."""
        return self.rows * self.num_shards

    @property
    def shards_each(self) -> int:
        """Shards of a device."""
        return self.num_shards // self.mesh.size

    @property
    def rows_each(self) -> int:
        """Rows of a device."""
        return self.rows * self.shards_each

    def over_rows(self) -> NamedSharding:
        """The first axis over the devices."""
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    def everywhere(self) -> NamedSharding:
        """A copy on every device."""
        return NamedSharding(self.mesh, PartitionSpec())


def check_layout(layout: Layout) -> None:
    """Raises ValueError where a mesh, a number of shards and a number of classes do not belong together."""
    if len(layout.mesh.axis_names) != 1:
        raise ValueError(
            f"expected a mesh of one axis, for classes and examples alike, got the axes {layout.mesh.axis_names}. "
            "Use candax.training.class_mesh()."
        )
    if layout.num_shards < 1 or layout.num_shards % layout.mesh.size:
        raise ValueError(
            f"expected num_shards to be a multiple of the number of devices, got {layout.num_shards} shards for "
            f"{layout.mesh.size} devices."
        )
    if layout.num_classes < layout.num_shards:
        raise ValueError(
            f"expected at least one class a shard, got {layout.num_classes} classes for {layout.num_shards} shards. "
            "Use fewer shards, or fewer devices."
        )


def first_row(layout: Layout) -> Int[Array, ""]:
    """The id of this device's first class."""
    return jax.lax.axis_index(AXIS) * layout.rows_each


def own_labels(layout: Layout, labels: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Labels as rows of this device, -1 where another device has them."""
    return _within(labels, first_row(layout), layout.rows_each)


def _within(labels: Int[Array, "B T"], first: Int[Array, ""], number: int) -> Int[Array, "B T"]:
    local = labels - first
    return jnp.where((labels >= 0) & (local >= 0) & (local < number), local, -1)


class Tables(NamedTuple):
    """The rows of the head's tables, of all devices or of one."""

    vectors: Float[Array, "rows dim"]
    biases: Float[Array, "rows"] | None
    counts: Float[Array, "rows"] | None


def of_device(layout: Layout, tables: Tables) -> Classes:
    """One device's rows, with the number of those that are classes."""
    valid = jnp.clip(layout.num_classes - first_row(layout), 0, layout.rows_each)
    return Classes(*tables, valid, layout.normalized)


def padded(table: Array, layout: Layout) -> Array:
    """The valid rows of a table, and zeros up to the rows of all shards."""
    table = table[: layout.num_classes]
    return jnp.pad(table, ((0, layout.num_rows - layout.num_classes), *[(0, 0)] * (table.ndim - 1)))


class Shard(NamedTuple):
    """One shard, as its sampler sees it."""

    number: Int[Array, ""]
    num_valid: Int[Array, ""]
    classes: Classes


def for_each_shard(
    layout: Layout, function: Callable[..., PyTree], tables: Tables, stacked: tuple[PyTree, ...] = ()
) -> PyTree:
    """``function(shard, *one of each stacked)`` for each of this device's shards; the results stacked again."""

    def of_shard(arguments: tuple[Array, Tables, tuple[PyTree, ...]]) -> PyTree:
        place, some, rest = arguments
        number = jax.lax.axis_index(AXIS) * layout.shards_each + place
        valid = jnp.clip(layout.num_classes - number * layout.rows, 0, layout.rows).astype(jnp.int32)
        # No sampler knows what to do without any class: candidates of an empty shard are masked instead.
        classes = Classes(*some, jnp.maximum(valid, 1), layout.normalized)
        return function(Shard(number, valid, classes), *rest)

    def cut(leaf: Array) -> Array:
        return leaf.reshape(layout.shards_each, layout.rows, *leaf.shape[1:])

    places = jnp.arange(layout.shards_each, dtype=jnp.int32)
    if layout.shards_each == 1:
        place, states = jax.tree.map(lambda leaf: leaf[0], (places, stacked))
        return jax.tree.map(lambda leaf: leaf[None], of_shard((place, tables, states)))
    # One after the other, and not vmapped: a vmapped condition runs both of its branches.
    return jax.lax.map(of_shard, (places, jax.tree.map(cut, tables), stacked))


def draw_on_device(
    layout: Layout,
    sampler: Sampler,
    states: State,
    key: KeyArray,
    embeddings: Float[Array, "B dim"],
    labels: Int[Array, "B T"],
    tables: Tables,
) -> Drawn:
    """Every shard of this device draws; candidates of all of them, and the distinct rows among them and the labels.

    Args:
        layout: see ``Layout``.
        sampler: of one shard.
        states: its states, one a shard.
        key: of the step, the same on all devices.
        embeddings: of the whole batch, of length 1 where the head is normalised.
        labels: of the whole batch, as ids over all devices.
        tables: this device's rows.

    Returns:
        ``Drawn`` with ids that are rows of this device; counts of labels that it does not own are 0.
    """
    batch_size, num_labels = labels.shape

    def draw(shard: Shard, state: State) -> tuple[Candidates, Float[Array, "B T"]]:
        local = _within(labels, shard.number * layout.rows, layout.rows)
        query = Query(embeddings, local, shard.classes)
        found = sampler.sample(state, jax.random.fold_in(key, shard.number), query)
        true_ids = jnp.maximum(local, 0).reshape(found.ids.shape[0], -1)
        true_count = sampler.log_expected_count(state, found, true_ids, query).reshape(batch_size, num_labels)
        # A shard without a class that could be drawn says so by its counts, or by ids that are no classes.
        mask = found.mask & (found.ids < shard.num_valid) & (found.log_expected_count > -jnp.inf)
        ids = jnp.where(mask, found.ids + shard.number * layout.rows - first_row(layout), 0)
        counts = jnp.where(mask, found.log_expected_count, 0.0)
        return Candidates(ids, counts, mask), jnp.where(local >= 0, true_count, 0.0)

    found, true_counts = for_each_shard(layout, draw, tables, (states,))

    def side_by_side(leaf: Array) -> Array:
        return jnp.moveaxis(leaf, 0, 1).reshape(leaf.shape[1], -1)

    candidates = jax.tree.map(side_by_side, found)
    own = own_labels(layout, labels)
    sampled = jnp.where(candidates.mask, candidates.ids, -1)
    unique = unique_rows(jnp.concatenate([own.reshape(-1), sampled.reshape(-1)]), layout.rows_each)
    return Drawn(
        candidates,
        jnp.sum(true_counts, axis=0),
        unique.ids,
        unique.positions[: own.size].reshape(own.shape),
        unique.positions[own.size :].reshape(sampled.shape),
        layout.normalized,
    )


def update_on_device(
    layout: Layout,
    sampler: Sampler,
    states: State,
    key: KeyArray,
    embeddings: Float[Array, "B dim"],
    labels: Int[Array, "B T"],
    tables: Tables,
    ids: Int[Array, "U"],
    rows: Float[Array, "U dim"],
) -> State:
    """Tells every shard's sampler which of its class vectors have changed; see ``draw_on_device``."""

    def update(shard: Shard, state: State) -> State:
        first = shard.number * layout.rows - first_row(layout)
        # Ids are sorted: those of a shard are a run, moved to the front here.
        place = jnp.searchsorted(ids, first) + jnp.arange(ids.shape[0])
        at = jnp.minimum(place, ids.shape[0] - 1)
        local = ids[at] - first
        mine = (place < ids.shape[0]) & (local < layout.rows)
        fillers = layout.rows + jnp.arange(ids.shape[0], dtype=ids.dtype)
        changed = jnp.where(mine[:, None], rows[at], 0).astype(rows.dtype)
        query = Query(embeddings, _within(labels, shard.number * layout.rows, layout.rows), shard.classes)
        key_shard = jax.random.fold_in(key, shard.number)
        return sampler.update(state, key_shard, query, jnp.where(mine, local, fillers), changed)

    return for_each_shard(layout, update, tables, (states,))


class Parts(NamedTuple):
    """A device's share of ``SampledLogits``: true logits and counts are 0 where it does not own the label."""

    true: Float[Array, "1 B T"]
    true_log_expected_count: Float[Array, "1 B T"]
    sampled: Float[Array, "B S"]
    sampled_log_expected_count: Float[Array, "B S"]
    sampled_mask: Bool[Array, "B S"]
    hits: Bool[Array, "B S"]


# How the devices' parts lie: true logits by owner, slots side by side.
_PLACES: list[Any] = [PartitionSpec(AXIS)] * 2 + [PartitionSpec(None, AXIS)] * 4
PARTS = Parts(*_PLACES)


def parts_of(logits: SampledLogits) -> Parts:
    """From logits whose labels are those that the device owns."""
    return Parts(
        jnp.where(logits.true_mask, logits.true, 0.0)[None],
        jnp.where(logits.true_mask, logits.true_log_expected_count, 0.0)[None],
        logits.sampled,
        logits.sampled_log_expected_count,
        logits.sampled_mask,
        logits.hits,
    )


def joined(parts: Parts, labels: Int[Array, "B T"], num_classes: int) -> SampledLogits:
    """All devices' parts together, outside ``shard_map``: the sum over owners is the one exchange."""
    return SampledLogits(
        true=jnp.sum(parts.true, axis=0),
        true_log_expected_count=jnp.sum(parts.true_log_expected_count, axis=0),
        true_mask=labels >= 0,
        sampled=parts.sampled,
        sampled_log_expected_count=parts.sampled_log_expected_count,
        sampled_mask=parts.sampled_mask,
        hits=parts.hits,
        num_classes=num_classes,
    )
