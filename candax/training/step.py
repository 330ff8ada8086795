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
from candax.cosines import as_scored
from candax.losses.full import scores_all_classes
from candax.models import Classifier, Table, draw_rows, score_rows, tables_of
from candax.rows import gather_wide, rowwise
from candax.rows.rounding import Rounding
from candax.training.encoding import EncoderSide, RowGradients


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
        init: ``(seed) -> TrainState`` from the model's present values (``build_class_parallel``: those it was given).
        step: ``(state, batch) -> (state, loss)``, jitted; the state given is donated and must not be used again.
            ``loss`` is the batch's, a float32 scalar on the device: the mean, unless ``build`` got another ``reduce``.
            Where the batch has ``label_runs`` its labels are neighbours in runs of words, see ``models.draw_rows``.
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
# And those for rounding, from the step's key, from a number that no split of it gives.
_ROUND = 2**31 - 2


class _Objective(NamedTuple):
    """The loss, its gradient to the embeddings, and gradients of the head's rows: (ids, gradient), ids None: all."""

    loss: Float[Array, ""]
    embeddings_grad: Float[Array, "B dim"]
    ids: Int[Array, "U"] | None
    row_grads: dict[str, Array]


def build(
    model: Classifier | Callable[[], Classifier],
    *,
    sampler: Sampler | None,
    loss: Callable[..., Float[Array, "B"]],
    optimizer: optax.GradientTransformation,
    clip_norm: float | None = None,
    reduce: Callable[[Float[Array, "B"]], Float[Array, ""]] = jnp.mean,
    rounding: Rounding = "nearest",
) -> Program:
    """Compiles a model, a sampler, a loss and an optimizer into a ``Program``.

    Args:
        model: see ``candax.models.Classifier``. Its arrays are copied by ``Program.init``. Or a function that makes it,
            where two copies of the class table are too much: ``Program.init`` makes the arrays where they are trained,
            and ``update_model`` has no model to write to.
        sampler: any sampler; None with a loss over all classes alone.
        loss: any loss on ``SampledLogits``, or one over all classes: ``candax.losses.full_softmax`` (also as
            ``functools.partial`` with a ``block_size``), or ``candax.losses.over_all_classes`` of a loss.
        optimizer: an elementwise optax transformation; on tables it acts by rows (see ``candax.rows.rowwise``).
        clip_norm: largest global norm of all gradients together, encoder's and rows'; None: no clipping.
        reduce: makes the one number that the step minimises of the batch's losses: their mean, unless examples belong
            together otherwise (the words of a sentence, say).
        rounding: how new rows of bfloat16 tables (``Head(..., dtype=jnp.bfloat16)``) are rounded: "nearest", or
            "stochastic", without which a small learning rate teaches them nothing; see ``candax.rows.rowwise``. Rows
            are stored in bfloat16 and computed with in float32, and so is the optimizer state.

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
    check_pair(sampler, loss)
    by_rows, clip = rowwise(optimizer, rounding=rounding), clipping(clip_norm)
    abstract = model if isinstance(model, Classifier) else nnx.eval_shape(model)
    if not isinstance(abstract, Classifier):
        raise ValueError(f"expected a Classifier, or a function that makes one, got one that makes {abstract!r}.")
    side = EncoderSide(abstract)
    num_classes, normalized = abstract.head.num_classes, abstract.head.normalized

    def start(made: Classifier, key: KeyArray, own: Callable[[Any], Any] = lambda tree: tree) -> TrainState:
        _, _, params, other = nnx.split(made.encoder, Table, nnx.Param, ...)
        params, other = own((params, other))
        tables = own({name: table[...] for name, table in tables_of(made).items()})
        state = TrainState(
            step=jnp.int32(0),
            key_data=jax.random.key_data(key),
            params=params,
            other=other,
            tables=tables,
            counts=None if made.head.counts is None else own(made.head.counts[...]),
            params_optimizer=optimizer.init(params),
            table_optimizers={name: by_rows.init(table) for name, table in tables.items()},
            sampler=(),
        )
        if sampler is None:
            return state
        # A sampler may keep arrays of the classes as they are; donated twice, they would be freed twice.
        return dataclasses.replace(state, sampler=own(sampler.init(jax.random.fold_in(key, _INIT), classes(state))))

    def start_anew(key_data: Array) -> TrainState:
        assert not isinstance(model, Classifier)
        return start(model(), jax.random.wrap_key_data(key_data))

    def init(seed: int) -> TrainState:
        key = jax.random.key(seed)
        if isinstance(model, Classifier):
            # Copies: a step donates its state, and the model's own arrays must outlive it.
            return start(model, key, lambda tree: jax.tree.map(jnp.array, tree))
        return jax.jit(start_anew)(jax.random.key_data(key))

    def classes(state: TrainState) -> Classes:
        tables = state.tables
        return of_rows(tables["class_vectors"], tables.get("class_biases"), state.counts)

    def of_rows(vectors: Array, biases: Array | None, counts: Array | None = None) -> Classes:
        return Classes(vectors, biases, counts, jnp.int32(num_classes), normalized)

    def all_classes(state: TrainState, embeddings: Array, labels: Array) -> _Objective:
        def objective(embeddings: Array, vectors: Array, biases: Array | None) -> Array:
            return reduce(loss(embeddings, labels, of_rows(vectors, biases)))

        tables = state.tables
        value, (to_embeddings, *to_tables) = jax.value_and_grad(objective, argnums=(0, 1, 2))(
            embeddings, tables["class_vectors"], tables.get("class_biases")
        )
        return _Objective(value, to_embeddings, None, _named(*to_tables))

    def candidate_classes(
        state: TrainState, query: Query, embeddings: Array, runs: Array | None, key: KeyArray
    ) -> _Objective:
        assert sampler is not None
        labels, tables = query.labels, state.tables
        drawn = draw_rows(sampler, state.sampler, key, query, runs)

        def objective(embeddings: Array, vectors: Array, biases: Array | None) -> Array:
            return reduce(loss(score_rows(drawn, embeddings, labels, vectors, biases, num_classes=num_classes)))

        vectors = gather_wide(tables["class_vectors"], drawn.ids)
        biases = gather_wide(tables["class_biases"], drawn.ids) if "class_biases" in tables else None
        value, (to_embeddings, *to_rows) = jax.value_and_grad(objective, argnums=(0, 1, 2))(embeddings, vectors, biases)
        return _Objective(value, to_embeddings, drawn.ids, _named(*to_rows))

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Float[Array, ""]]:
        labels = jnp.asarray(batch.labels)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key_data), state.step)
        key_sample, key_update = jax.random.split(key)
        encoded = side.encode(state.params, state.other, state.tables, batch)
        embeddings = jax.lax.stop_gradient(encoded.embeddings)
        query = Query(as_scored(embeddings, normalized), labels, classes(state))
        if sampler is None:
            objective = all_classes(state, embeddings, labels)
        else:
            runs = getattr(batch, "label_runs", None)
            objective = candidate_classes(state, query, embeddings, runs, key_sample)
        head_rows: RowGradients = {name: (objective.ids, grad) for name, grad in objective.row_grads.items()}
        params_grad, table_grads = side.gradients(encoded, objective.embeddings_grad, head_rows, clip)

        updates, params_optimizer = optimizer.update(params_grad, state.params_optimizer, state.params)
        tables, table_optimizers, new_rows = dict(state.tables), dict(state.table_optimizers), {}
        key_of = rounding_keys(key, state.tables)
        for name, (ids, grad) in table_grads.items():
            of_table = (grad, state.table_optimizers[name], state.tables[name])
            if ids is None:
                tables[name], table_optimizers[name] = by_rows.update_all(*of_table, key_of[name])
            else:
                tables[name], table_optimizers[name], new_rows[name] = by_rows.update(*of_table, ids, key_of[name])[:3]
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
        return side.encode(state.params, state.other, state.tables, batch).embeddings

    def update_model(state: TrainState) -> None:
        if not isinstance(model, Classifier):
            raise ValueError(
                "update_model writes into the model given to build, which was a function. Give it a model, or read the "
                "state's own arrays."
            )
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
        lookups=lambda batch: side.lookups(abstract.encoder, batch),
    )


def rounding_keys(key: KeyArray, tables: dict[str, Array]) -> dict[str, KeyArray]:
    """A key for each table, from the key of the step."""
    key = jax.random.fold_in(key, _ROUND)
    return {name: jax.random.fold_in(key, number) for number, name in enumerate(sorted(tables))}


def check_pair(sampler: Sampler | None, loss: Callable[..., Float[Array, "B"]]) -> None:
    """Raises ValueError where a sampler and a loss do not belong together."""
    if scores_all_classes(loss) != (sampler is None):
        raise ValueError(
            "expected a sampler with every loss but full_softmax and over_all_classes(...), each of which scores all "
            "classes itself and takes none: "
            f"got sampler={'None' if sampler is None else 'a sampler'} with loss={loss!r}."
        )


def clipping(clip_norm: float | None) -> optax.GradientTransformation:
    """Clips all gradients together to a global norm; None: not at all."""
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"expected clip_norm > 0 or None, got {clip_norm!r}.")
    return optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)


def _named(vectors: Array, biases: Array | None) -> dict[str, Array]:
    return {"class_vectors": vectors} if biases is None else {"class_vectors": vectors, "class_biases": biases}
