"""Class-parallel training: class rows and examples sharded over the same devices.

    encoder on each device's examples -> embeddings and labels of all examples to all devices
    -> each device draws from its own classes and scores its own rows (inside shard_map, without communication)
    -> true logits summed over their owners; the loss on the global logits, slots still sharded
    -> gradients back to each device's rows and examples -> row-sparse update of each device's rows

Gradients are taken outside ``shard_map``, of a scoring body without collectives: what every device gets (embeddings)
and what is summed over devices (true logits) is for JAX to transpose.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from candax.base import Classes, KeyArray, Sampler, never
from candax.cosines import as_scored
from candax.losses.full import candidates_loss
from candax.models import Classifier, Table, tables_of
from candax.rows import rowwise
from candax.rows.rounding import Rounding
from candax.training.encoding import EncoderSide, RowGradients
from candax.training.placement import Placed, on_all, state_shardings
from candax.training.sharded_head import Batch, ShardedHead
from candax.training.shards import AXIS, Layout, Tables, check_layout, class_mesh, padded
from candax.training.step import Program, TrainState, check_pair, clipping, rounding_keys

_HEAD = ("class_vectors", "class_biases")
_INIT = 2**31 - 1


def build_class_parallel(
    model: Classifier | Callable[[], Classifier],
    *,
    sampler: Sampler | None,
    loss: Callable[..., Float[Array, "B"]],
    optimizer: optax.GradientTransformation,
    mesh: Mesh | None = None,
    num_shards: int | None = None,
    clip_norm: float | None = None,
    reduce: Callable[[Float[Array, "B"]], Float[Array, ""]] = jnp.mean,
    rounding: Rounding = "nearest",
) -> Program:
    """``candax.training.build`` for classes and examples sharded over devices; the same ``Program``.

    The class table, its optimizer state and the sampler are cut into ``num_shards`` shards of consecutive ids, dealt
    to the devices; the encoder is on all of them and its examples are divided. Every shard has a sampler of its own
    classes alone: ``sampler`` is that of **one shard**, so that S slots make S * num_shards candidates, and samplers
    that go by labels see those of their shard. Its state is built, drawn from and refreshed without communication.
    What is drawn depends on the seed and on ``num_shards``, not on the number of devices, and neither do losses,
    gradients and trained values, beyond rounding. A checkpoint can be read with any number of devices that divides
    ``num_shards``. One shard a device is the quick way: with more they are worked through one after the other, and
    each step copies the sampler's state.

    ``losses.css`` with "redraw" assumes one distribution over all classes, which shards do not have: use "drop".
    Losses over all classes work on each device's logits of its own classes, in their plain form.

    Args:
        model: as in ``build``; or a function that makes it. The function's arrays are made where they are needed, each
            device its own part, and never on one device as a whole; ``update_model`` has no model to write to then.
        sampler: of one shard; None with a loss over all classes alone.
        loss: as in ``build``.
        optimizer: as in ``build``.
        mesh: of one axis; None: ``class_mesh()``, all devices.
        num_shards: a multiple of the number of devices; None: as many.
        clip_norm: as in ``build``.
        reduce: as in ``build``.
        rounding: as in ``build``; at random, rows are rounded alike whatever the number of devices.

    Returns:
        A ``Program``. Batches must have a multiple of the number of devices of examples. With several processes every
        process passes the whole batch, and uses its own part.

    Raises:
        ValueError: as ``build``; for a table that encoder and head share; for numbers that do not fit.

    Example:
        >>> import numpy as np, optax
        >>> from flax import nnx
        >>> import candax as cx
        >>> def model():
        ...     encoder = cx.models.SparseMLP(50, 8, rngs=nnx.Rngs(0))
        ...     return cx.models.Classifier(encoder, cx.models.Head(101, 8, rngs=nnx.Rngs(1)))
        >>> program = cx.training.build_class_parallel(
        ...     model, sampler=cx.samplers.uniform(10), loss=cx.losses.css, optimizer=optax.adam(1e-3),
        ...     mesh=cx.training.class_mesh(1), num_shards=2,
        ... )
        >>> batch = cx.data.Batch(np.zeros((4, 3), np.int32), np.ones((4, 3), np.float32), np.zeros((4, 1), np.int32))
        >>> state, loss = program.step(program.init(0), batch)
        >>> state.tables["class_vectors"].shape  # one row of padding
        (102, 8)

    Source: the hybrid parallel framework of Zhao et al., ANN Softmax (PVLDB 2022), section 3.1.
    """
    check_pair(sampler, loss)
    by_rows, clip = rowwise(optimizer, rounding=rounding), clipping(clip_norm)
    abstract = model if isinstance(model, Classifier) else nnx.eval_shape(model)
    mesh = class_mesh() if mesh is None else mesh
    num_classes, normalized = abstract.head.num_classes, abstract.head.normalized
    layout = Layout(mesh, mesh.size if num_shards is None else num_shards, num_classes, normalized)
    check_layout(layout)
    layout = layout._replace(mesh=Mesh(mesh.devices, (AXIS,)))  # its own name, and axes that XLA may cut by itself
    side, head = EncoderSide(abstract), ShardedHead(layout, sampler, by_rows)
    if "class_vectors" in side.table_name.values():
        raise ValueError(
            "expected an encoder with tables of its own: a class table that encoder and head share cannot be sharded "
            "by classes. Give the encoder a table of its own, or train on one device."
        )
    on_candidates = candidates_loss(loss) if sampler is None else loss

    def tables_in(state: TrainState) -> Tables:
        return Tables(state.tables["class_vectors"], state.tables.get("class_biases"), state.counts)

    def classes(state: TrainState) -> Classes:
        return Classes(*tables_in(state), on_all(layout, jnp.int32(num_classes)), normalized)

    def start(made: Classifier, key: KeyArray) -> TrainState:
        _, _, params, other = nnx.split(made.encoder, Table, nnx.Param, ...)
        tables = {name: table[...] for name, table in tables_of(made).items()}
        tables |= {name: padded(tables[name], layout) for name in _HEAD if name in tables}
        counts = None if made.head.counts is None else padded(made.head.counts[...], layout)
        of_head = Tables(tables["class_vectors"], tables.get("class_biases"), counts)
        return TrainState(
            step=jnp.int32(0),
            key_data=jax.random.key_data(key),
            params=params,
            other=other,
            tables=tables,
            counts=counts,
            params_optimizer=optimizer.init(params),
            table_optimizers={name: by_rows.init(table) for name, table in tables.items()},
            sampler=() if sampler is None else head.build(jax.random.fold_in(key, _INIT), of_head),
        )

    def start_from(values: PyTree, key_data: Array) -> TrainState:
        made = model() if graph is None else nnx.merge(graph, values)
        return start(made, jax.random.wrap_key_data(key_data))

    graph, values = nnx.split(model) if isinstance(model, Classifier) else (None, None)
    key_data = jax.random.key_data(jax.random.key(0))
    shardings = state_shardings(layout, jax.eval_shape(start_from, values, key_data), head.optimizer_specs)
    started = jax.jit(start_from, out_shardings=shardings)

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Float[Array, ""]]:
        labels, tables = jnp.asarray(batch.labels), tables_in(state)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key_data), state.step)
        key_sample, key_update = jax.random.split(key)
        encoded = side.encode(state.params, state.other, state.tables, batch)
        embeddings = jax.lax.stop_gradient(encoded.embeddings)
        seen = Batch(as_scored(embeddings, normalized), labels)
        if sampler is None:
            drawn, rows = None, (tables.vectors, tables.biases)
        else:
            drawn, rows = head.draw(state.sampler, key_sample, seen, tables)

        def objective(embeddings: Array, rows: tuple[Array, Array | None]) -> Array:
            if drawn is None:
                return reduce(on_candidates(head.score_all(embeddings, rows, labels)))
            return reduce(on_candidates(head.score(embeddings, rows, drawn, labels)))

        value, (to_embeddings, to_rows) = jax.value_and_grad(objective, argnums=(0, 1))(embeddings, rows)
        ids = None if drawn is None else drawn.ids
        head_rows: RowGradients = {
            name: (ids, grad) for name, grad in zip(_HEAD, to_rows, strict=True) if grad is not None
        }
        params_grad, table_grads = side.gradients(encoded, to_embeddings, head_rows, clip)

        updates, params_optimizer = optimizer.update(params_grad, state.params_optimizer, state.params)
        new_tables, optimizers, samplers = dict(state.tables), dict(state.table_optimizers), state.sampler
        key_of = rounding_keys(key, state.tables)
        if drawn is not None:
            of_head = (optimizers["class_vectors"], optimizers.get("class_biases"))
            grads = (table_grads["class_vectors"][1], table_grads.get("class_biases", (None, None))[1])
            keys = (key_of["class_vectors"], key_of.get("class_biases"))
            updated = head.update(samplers, key_update, keys, seen, tables, of_head, drawn.ids, grads)
            samplers = updated.samplers
            for name, table, table_state in zip(_HEAD, updated.rows, updated.optimizers, strict=True):
                if table is not None:
                    new_tables[name], optimizers[name] = table, table_state
        for name, (row_ids, grad) in table_grads.items():
            of_table = (grad, state.table_optimizers[name], state.tables[name])
            if row_ids is None:
                new_tables[name], optimizers[name] = by_rows.update_all(*of_table, key_of[name])
            elif name not in _HEAD:
                new_tables[name], optimizers[name] = by_rows.update(*of_table, row_ids, key_of[name])[:2]
        new_state = TrainState(
            step=state.step + 1,
            key_data=state.key_data,
            params=optax.apply_updates(state.params, updates),
            other=encoded.other,
            tables=new_tables,
            counts=state.counts,
            params_optimizer=params_optimizer,
            table_optimizers=optimizers,
            sampler=samplers,
        )
        return new_state, value

    def refresh(state: TrainState) -> TrainState:
        if sampler is None:
            return state
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key_data), state.step)
        built = head.build(jax.random.fold_in(key, _INIT), tables_in(state), state.sampler)
        return dataclasses.replace(state, sampler=built)

    def embed(state: TrainState, batch: Any) -> Float[Array, "B dim"]:
        return side.encode(state.params, state.other, state.tables, batch).embeddings

    def update_model(state: TrainState) -> None:
        if not isinstance(model, Classifier):
            raise ValueError(
                "update_model writes into the model given to build_class_parallel, which was a function. Give it a "
                "model, or read the state's own arrays."
            )
        on_host = jax.device_get((state.tables, state.params, state.other))
        for name, table in tables_of(model).items():
            rows = num_classes if name in _HEAD else table.shape[0]
            table[...] = table[...].at[:rows].set(on_host[0][name][:rows])
        nnx.update(model.encoder, *jax.tree.map(jnp.array, on_host[1:]))

    run = jax.jit(step, donate_argnums=0, out_shardings=(shardings, layout.everywhere()))
    run_embed = jax.jit(embed, out_shardings=layout.everywhere())
    at_start = values if layout.everywhere().is_fully_addressable else jax.tree.map(partial(on_all, layout), values)
    return Program(
        init=lambda seed: started(at_start, on_all(layout, jax.random.key_data(jax.random.key(seed)))),
        step=Placed(layout, run),
        refresh=jax.jit(refresh, donate_argnums=0, out_shardings=shardings),
        embed=Placed(layout, run_embed, uneven=True),
        classes=classes,
        update_model=update_model,
        schedule=never if sampler is None else sampler.schedule,
        num_classes=num_classes,
        lookups=lambda batch: side.lookups(abstract.encoder, batch),
    )
