"""One training step: encoder, candidates, loss, row-sparse update; jitted, donated, compiled once.

    encoder forward with vjp -> embeddings -> sampler.sample -> unique rows of true and sampled classes
    -> loss differentiated with respect to rows and embeddings -> vjp into the encoder
    -> optimizer on the gathered rows of table and optimizer state -> scatter back in place -> sampler.update

With a static sampler nothing in a step has the size of the class table, except the table itself, updated in place.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree, UInt32

from candax.base import Classes, KeyArray, Query, Sampler, State, never, pytree
from candax.losses.full import full_softmax
from candax.models import Classifier, Table, draw_rows, encoder_tables, score_rows, tables_of
from candax.rows import UniqueRows, gather_rows, rowwise, unique_rows


@pytree
class TrainState:
    """All that training changes or needs to go on: a pytree of arrays, saved and restored whole."""

    step: Int[Array, ""]
    key_data: UInt32[Array, "n"]
    params: PyTree
    other: PyTree
    tables: dict[str, Array]
    counts: Float[Array, "num_classes"] | None
    params_optimizer: PyTree
    table_optimizers: dict[str, PyTree]
    sampler: State


class Program(NamedTuple):
    """A model, a sampler, a loss and an optimizer, compiled into functions on a ``TrainState``.

    Attributes:
        init: ``(seed) -> TrainState`` from the model's values at the time of ``build``.
        step: ``(state, batch) -> (state, loss)``, jitted; the state given is donated and must not be used again.
            ``loss`` is the batch's, a float32 scalar on the device: the mean, unless ``build`` got another ``reduce``.
        refresh: ``(state) -> state``, jitted and donated: rebuilds the sampler's state from all classes.
        embed: ``(state, batch) -> embeddings``, jitted, for prediction.
        classes: ``(state) -> Classes``: the output layer.
        update_model: ``(state) -> None``: writes the trained values back into the model given to ``build``.
        schedule: the sampler's, ``(step) -> bool``.
        num_classes: valid classes.
        lookups: ``(batch) -> {table: (ids, number of rows)}`` of the encoder, for checks of a batch on the host.
    """

    init: Callable[[int], TrainState]
    step: Callable[[TrainState, Any], tuple[TrainState, Float[Array, ""]]]
    refresh: Callable[[TrainState], TrainState]
    embed: Callable[[TrainState, Any], Float[Array, "B dim"]]
    classes: Callable[[TrainState], Classes]
    update_model: Callable[[TrainState], None]
    schedule: Callable[[int], bool]
    num_classes: int
    lookups: Callable[[Any], dict[str, tuple[Any, int]]]


# Keys for building a sampler's state are folded from a number that no step has.
_INIT = 2**31 - 1


class _Encoded(NamedTuple):
    embeddings: Float[Array, "B dim"]
    other: PyTree
    unique: dict[str, UniqueRows]  # by the encoder's own names, as the gradients of vjp
    vjp: Callable[[Float[Array, "B dim"]], tuple[PyTree, dict[str, Array]]]


class _Objective(NamedTuple):
    """The loss, its gradient to the embeddings, and gradients of the head's rows: (ids, gradient), ids None: all."""

    loss: Float[Array, ""]
    embeddings_grad: Float[Array, "B dim"]
    ids: Int[Array, "U"] | None
    row_grads: dict[str, Array]


def build(
    model: Classifier,
    *,
    sampler: Sampler | None,
    loss: Callable[..., Float[Array, "B"]],
    optimizer: optax.GradientTransformation,
    clip_norm: float | None = None,
    reduce: Callable[[Float[Array, "B"]], Float[Array, ""]] = jnp.mean,
) -> Program:
    """Compiles a model, a sampler, a loss and an optimizer into a ``Program``.

    Args:
        model: see ``candax.models.Classifier``. Its arrays are copied by ``Program.init``.
        sampler: any sampler; None with ``loss=full_softmax`` alone.
        loss: any loss on ``SampledLogits``, or ``candax.losses.full_softmax`` (also as ``functools.partial`` with a
            ``block_size``).
        optimizer: an elementwise optax transformation; on tables it acts by rows (see ``candax.rows.rowwise``).
        clip_norm: largest global norm of all gradients together, encoder's and rows'; None: no clipping.
        reduce: makes the one number that the step minimises of the batch's losses: their mean, unless examples belong
            together otherwise (the words of a sentence, say).

    Returns:
        A ``Program``.

    Raises:
        ValueError: if the optimizer cannot act by rows, or sampler and loss do not belong together.

    Example:
        >>> import numpy as np, optax
        >>> from types import SimpleNamespace
        >>> from flax import nnx
        >>> import candax as cx
        >>> model = cx.models.Classifier(
        ...     cx.models.SparseMLP(50, 8, rngs=nnx.Rngs(0)), cx.models.Head(100, 8, rngs=nnx.Rngs(1))
        ... )
        >>> program = cx.training.build(
        ...     model, sampler=cx.samplers.uniform(10), loss=cx.losses.css, optimizer=optax.adam(1e-3)
        ... )
        >>> batch = cx.data.Batch(np.zeros((4, 3), np.int32), np.ones((4, 3), np.float32), np.zeros((4, 1), np.int32))
        >>> state, loss = program.step(program.init(0), batch)
        >>> int(state.step)
        1
    """
    is_full = getattr(loss, "func", loss) is full_softmax
    if is_full != (sampler is None):
        raise ValueError(
            "expected a sampler with every loss but full_softmax, which scores all classes itself and takes none: "
            f"got sampler={'None' if sampler is None else 'a sampler'} with loss={loss!r}."
        )
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"expected clip_norm > 0 or None, got {clip_norm!r}.")
    by_rows = rowwise(optimizer)
    clip = optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)
    graph, encoder_table_values, params, other = nnx.split(model.encoder, Table, nnx.Param, ...)
    table_name = encoder_tables(model)
    num_rows = {name: table.shape[0] for name, table in tables_of(model).items()}
    num_classes = model.head.num_classes

    def init(seed: int) -> TrainState:
        # Copies: a step donates its state, and the model's own arrays must outlive it.
        own_params, own_other = jax.tree.map(jnp.array, (params, other))
        tables = {name: jnp.array(table[...]) for name, table in tables_of(model).items()}
        counts = model.head.counts
        key = jax.random.key(seed)
        state = TrainState(
            step=jnp.int32(0),
            key_data=jax.random.key_data(key),
            params=own_params,
            other=own_other,
            tables=tables,
            counts=None if counts is None else jnp.array(counts[...]),
            params_optimizer=optimizer.init(own_params),
            table_optimizers={name: by_rows.init(table) for name, table in tables.items()},
            sampler=(),
        )
        if sampler is None:
            return state
        drawn = sampler.init(jax.random.fold_in(key, _INIT), classes(state))
        # A sampler may keep arrays of the classes as they are; donated twice, they would be freed twice.
        return dataclasses.replace(state, sampler=jax.tree.map(jnp.array, drawn))

    def classes(state: TrainState) -> Classes:
        tables = state.tables
        return Classes(tables["class_vectors"], tables.get("class_biases"), state.counts, jnp.int32(num_classes))

    def encoder_of(params: PyTree, other: PyTree) -> Any:
        # The encoder computes from gathered rows: its own tables stay empty.
        return nnx.merge(graph, jax.tree.map(lambda _: jnp.zeros(0), encoder_table_values), params, other)

    def encode(state: TrainState, batch: Any) -> _Encoded:
        lookups = encoder_of(state.params, state.other).lookups(batch)
        unique, rows = {}, {}
        for attribute, ids in lookups.items():
            table = state.tables[table_name[attribute]]
            unique[attribute] = unique_rows(ids, table.shape[0])
            rows[attribute] = gather_rows(table, unique[attribute].ids)

        def forward(params: PyTree, rows: dict[str, Array]) -> tuple[Array, PyTree]:
            encoder = encoder_of(params, state.other)
            embeddings = encoder.encode(batch, {name: rows[name][unique[name].positions] for name in lookups})
            return embeddings, nnx.split(encoder, Table, nnx.Param, ...)[3]

        embeddings, vjp, new_other = jax.vjp(forward, state.params, rows, has_aux=True)
        return _Encoded(embeddings, new_other, unique, vjp)

    def all_classes(state: TrainState, embeddings: Array, labels: Array) -> _Objective:
        def objective(embeddings: Array, vectors: Array, biases: Array | None) -> Array:
            return reduce(loss(embeddings, Classes(vectors, biases, None, jnp.int32(num_classes)), labels))

        tables = state.tables
        value, (to_embeddings, *to_tables) = jax.value_and_grad(objective, argnums=(0, 1, 2))(
            embeddings, tables["class_vectors"], tables.get("class_biases")
        )
        return _Objective(value, to_embeddings, None, _named(*to_tables))

    def candidate_classes(state: TrainState, query: Query, embeddings: Array, key: KeyArray) -> _Objective:
        assert sampler is not None
        labels, tables = query.labels, state.tables
        drawn = draw_rows(sampler, state.sampler, key, query)

        def objective(embeddings: Array, vectors: Array, biases: Array | None) -> Array:
            return reduce(loss(score_rows(drawn, embeddings, labels, vectors, biases, num_classes=num_classes)))

        vectors = gather_rows(tables["class_vectors"], drawn.ids)
        biases = gather_rows(tables["class_biases"], drawn.ids) if "class_biases" in tables else None
        value, (to_embeddings, *to_rows) = jax.value_and_grad(objective, argnums=(0, 1, 2))(embeddings, vectors, biases)
        return _Objective(value, to_embeddings, drawn.ids, _named(*to_rows))

    def gradients(objective: _Objective, encoded: _Encoded) -> tuple[PyTree, dict[str, tuple[Array | None, Array]]]:
        """Gradients of the encoder's parameters, and for every table (row ids or None for all, gradients)."""
        params_grad, looked_up = encoded.vjp(objective.embeddings_grad)
        rows = {name: (objective.ids, grad) for name, grad in objective.row_grads.items()}
        for attribute, grad in looked_up.items():
            name, ids = table_name[attribute], encoded.unique[attribute].ids
            # Fillers have no row, whatever the encoder made of them: they must not count in the norm.
            grad = jnp.where((ids < num_rows[name]).reshape(-1, *[1] * (grad.ndim - 1)), grad, 0)
            rows[name] = _add_rows(rows[name], ids, grad, num_rows[name]) if name in rows else (ids, grad)
        grads = {name: grad for name, (_, grad) in rows.items()}
        (params_grad, grads), _ = clip.update((params_grad, grads), clip.init((params_grad, grads)))
        return params_grad, {name: (rows[name][0], grads[name]) for name in rows}

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Float[Array, ""]]:
        labels = jnp.asarray(batch.labels)
        key_sample, key_update = jax.random.split(
            jax.random.fold_in(jax.random.wrap_key_data(state.key_data), state.step)
        )
        encoded = encode(state, batch)
        embeddings = jax.lax.stop_gradient(encoded.embeddings)
        query = Query(embeddings, labels, classes(state))
        if sampler is None:
            objective = all_classes(state, embeddings, labels)
        else:
            objective = candidate_classes(state, query, embeddings, key_sample)
        params_grad, table_grads = gradients(objective, encoded)

        updates, params_optimizer = optimizer.update(params_grad, state.params_optimizer, state.params)
        tables, table_optimizers, new_rows = dict(state.tables), dict(state.table_optimizers), {}
        for name, (ids, grad) in table_grads.items():
            table, table_state = state.tables[name], state.table_optimizers[name]
            if ids is None:
                table_updates, table_optimizers[name] = optimizer.update(grad, table_state, table)
                tables[name] = optax.apply_updates(table, table_updates)
            else:
                tables[name], table_optimizers[name], new_rows[name] = by_rows.update(grad, table_state, table, ids)
        sampler_state = state.sampler
        if sampler is not None:
            ids, _ = table_grads["class_vectors"]
            assert ids is not None
            sampler_state = sampler.update(sampler_state, key_update, query, ids, new_rows["class_vectors"])
        new_state = TrainState(
            step=state.step + 1,
            key_data=state.key_data,
            params=optax.apply_updates(state.params, updates),
            other=encoded.other,
            tables=tables,
            counts=state.counts,
            params_optimizer=params_optimizer,
            table_optimizers=table_optimizers,
            sampler=sampler_state,
        )
        return new_state, objective.loss

    def refresh(state: TrainState) -> TrainState:
        if sampler is None:
            return state
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key_data), state.step)
        return dataclasses.replace(
            state, sampler=sampler.refresh(state.sampler, jax.random.fold_in(key, _INIT), classes(state))
        )

    def embed(state: TrainState, batch: Any) -> Float[Array, "B dim"]:
        return encode(state, batch).embeddings

    def update_model(state: TrainState) -> None:
        for name, table in tables_of(model).items():
            table[...] = jnp.array(state.tables[name])
        nnx.update(model.encoder, *jax.tree.map(jnp.array, (state.params, state.other)))

    return Program(
        init=init,
        step=jax.jit(step, donate_argnums=0),
        refresh=jax.jit(refresh, donate_argnums=0),
        embed=jax.jit(embed),
        classes=classes,
        update_model=update_model,
        schedule=never if sampler is None else sampler.schedule,
        num_classes=num_classes,
        lookups=lambda batch: {
            name: (ids, num_rows[table_name[name]]) for name, ids in model.encoder.lookups(batch).items()
        },
    )


def _named(vectors: Array, biases: Array | None) -> dict[str, Array]:
    return {"class_vectors": vectors} if biases is None else {"class_vectors": vectors, "class_biases": biases}


def _add_rows(
    rows: tuple[Int[Array, "U"] | None, Float[Array, "U dim"]],
    ids: Int[Array, "V"],
    grads: Float[Array, "V dim"],
    num_rows: int,
) -> tuple[Int[Array, "W"] | None, Float[Array, "W dim"]]:
    """Adds the row gradients of a second use of the same table: a table gets one update a step."""
    first_ids, first_grads = rows
    if first_ids is None:
        return None, first_grads.at[ids].add(grads, mode="drop", unique_indices=True, indices_are_sorted=True)
    both = jnp.concatenate([first_ids, ids])
    unique = unique_rows(jnp.where(both < num_rows, both, -1), num_rows)
    total = jnp.zeros((both.shape[0], *grads.shape[1:]), grads.dtype)
    return unique.ids, total.at[unique.positions].add(jnp.concatenate([first_grads, grads]))
