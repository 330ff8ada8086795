"""An encoder, a head, a sampler, a loss and an optimizer as functions on one state: what experiments are written with.

All of it is layer 2: ``cx.Head``, ``cx.value_and_grad`` and ``cx.Optimizer``, by the same compiled step as ``fit``'s.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree, UInt32

from candax.base import Classes, Sampler, State, never, pytree, static_field
from candax.models import Classifier, tables_of
from candax.models.head import INIT, Head as TrainedHead
from candax.models.sampled import check_sampler_and_loss
from candax.rows.by_rows import rowwise
from candax.rows.placement import placement, replicate, shard
from candax.rows.rounding import Rounding
from candax.rows.tables import Constant
from candax.training.feed import BatchSource
from candax.training.loop import fit
from candax.training.optimizer import Optimizer
from candax.training.trainer import Graph, compiled_step
from candax.training.validation import Validation


@pytree
class TrainState:
    """All that training changes or needs to go on: the arrays of a model and its optimizer.

    Attributes:
        arrays: of both.
        graph: their structure.
    """

    arrays: PyTree
    graph: Any = static_field(default=None)

    @classmethod
    def of(cls, model: Classifier, optimizer: Optimizer) -> "TrainState":
        """The present arrays of both."""
        graph, arrays = nnx.split((model, optimizer))
        return cls(arrays, graph)

    @property
    def nodes(self) -> tuple[Classifier, Optimizer]:
        """Model and optimizer, made of these arrays."""
        # Copies of the variables: what is done to these modules leaves the state as it is.
        return nnx.merge(self.graph, self.arrays, copy=True)

    @property
    def step(self) -> UInt32[Array, ""]:
        """Steps done."""
        return self.nodes[1].step[...]

    @property
    def tables(self) -> dict[str, Array]:
        """Of the model, see ``models.tables_of``."""
        return {name: table[...] for name, table in tables_of(self.nodes[0]).items()}

    @property
    def sampler(self) -> State:
        """The sampler's state."""
        state = self.nodes[0].head.state
        return () if state is None else state.get_value()

    def with_sampler(self, sampler: State) -> "TrainState":
        """This state with another of the sampler."""
        nodes = self.nodes
        nodes[0].head.state.set_value(sampler)
        return TrainState.of(*nodes)


class Program(NamedTuple):
    """A model, a sampler, a loss and an optimizer, compiled into functions on a ``TrainState``.

    Attributes:
        init: ``(seed) -> TrainState`` from the model's present values.
        step: ``(state, batch) -> (state, loss)``, jitted; the state given is donated and must not be used again.
            ``loss`` is the batch's, a float32 scalar on the device: the mean, unless ``build`` got another ``reduce``.
            Where the batch has ``label_runs`` its labels are neighbours in runs of words, see ``Head.loss``.
        refresh: ``(state) -> state``, jitted and donated: rebuilds the sampler's state from all classes.
        embed: ``(state, batch) -> embeddings``, jitted, for prediction.
        classes: ``(state) -> Classes``: the output layer.
        update_model: ``(state) -> None``: writes the trained values back into the model given to ``build``.
        schedule: the sampler's, ``(step) -> bool``.
        num_classes: valid classes.
        loss_fn: ``(model, batch) -> loss``, of the model of a state.
    """

    init: Callable[[int], TrainState]
    step: Callable[[TrainState, Any], tuple[TrainState, Float[Array, ""]]]
    refresh: Callable[[TrainState], TrainState]
    embed: Callable[[TrainState, Any], Float[Array, "B dim"]]
    classes: Callable[[TrainState], Classes]
    update_model: Callable[[TrainState], None]
    schedule: Callable[[int], bool]
    num_classes: int
    loss_fn: Callable[[Any, Any], Any]


class TrainedProgram(NamedTuple):
    """The state after training and the records that were logged on the way, oldest first."""

    state: TrainState
    records: list[dict[str, Any]]


def build(
    model: Classifier | Callable[[], Classifier],
    *,
    sampler: Sampler | None,
    loss: Callable[..., Float[Array, "B"]],
    optimizer: optax.GradientTransformation,
    clip_norm: float | None = None,
    reduce: Callable[[Float[Array, "B"]], Float[Array, ""]] = jnp.mean,
    rounding: Rounding = "nearest",
    mesh: Mesh | None = None,
    axis: str = "classes",
    num_shards: int | None = None,
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
        mesh: devices over which the rows of all tables are dealt, see ``cx.Head``.
        axis: of the mesh, over which they lie.
        num_shards: each of so many runs of classes draws its part of the samples by itself, see ``cx.Head``.

    Returns:
        A ``Program``.

    Raises:
        ValueError: if the optimizer cannot act by rows, or sampler and loss do not belong together.

    Example:
        >>> import numpy as np, optax
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
    check_sampler_and_loss(sampler, loss)
    abstract = model if isinstance(model, Classifier) else nnx.eval_shape(model)
    if not isinstance(abstract, Classifier):
        raise ValueError(f"expected a Classifier, or a function that makes one, got one that makes {abstract!r}.")
    num_classes = abstract.head.num_classes
    placement(mesh, axis, num_shards, num_classes)
    # Found to be wrong here, and not when training starts.
    rowwise(optimizer, rounding=rounding)
    nnx.eval_shape(lambda: Optimizer(nnx.Dict(), optimizer, clip_norm=clip_norm, rounding=rounding))

    def start(made: Classifier, key_data: Array, seed: int) -> tuple[Classifier, Optimizer]:
        shard(made, mesh, axis=axis, num_shards=num_shards)
        made.head = _trained_head(made.head, sampler, loss, key_data)
        return made, Optimizer(made, optimizer, clip_norm=clip_norm, rounding=rounding, seed=seed)

    def init(seed: int) -> TrainState:
        key_data = jax.random.key_data(jax.random.key(seed))
        if isinstance(model, Classifier):
            # Copies: a step donates its state, and the model's own arrays must outlive it.
            graph, arrays = nnx.split(model)
            nodes = start(nnx.merge(graph, jax.tree.map(jnp.array, arrays)), key_data, seed)
        else:
            nodes = nnx.jit(lambda: start(model(), key_data, seed))()
        if mesh is not None:
            replicate(mesh, *nodes)
        return TrainState.of(*nodes)

    def loss_fn(trained: Classifier, batch: Any) -> Float[Array, ""]:
        runs = getattr(batch, "label_runs", None)
        return reduce(trained.head.loss(trained(batch), jnp.asarray(batch.labels), reduction="none", runs=runs))

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Float[Array, ""]]:
        arrays, (value, _) = compiled_step(loss_fn, 1)(Graph(state.graph), state.arrays, batch)
        return TrainState(arrays, state.graph), value

    def refresh(state: TrainState) -> TrainState:
        nodes = state.nodes
        head = nodes[0].head
        if head.state is None:
            return state
        key = jax.random.fold_in(head.step_key(), INIT)
        head.state.set_value(head.sampler.refresh(head.state.get_value(), key, head.classes()))
        return TrainState(nnx.state(nodes), state.graph)

    def update_model(state: TrainState) -> None:
        if not isinstance(model, Classifier):
            raise ValueError(
                "update_model writes into the model given to build, which was a function. Give it a model, or read the "
                "state's own arrays."
            )
        trained, _ = state.nodes
        nnx.update(model.encoder, jax.tree.map(jnp.array, nnx.state(trained.encoder)))
        for own, of in ((model.head.vectors, trained.head.vectors), (model.head.biases, trained.head.biases)):
            if own is not None and of is not None:
                own.set_value(jnp.array(of[...]))

    return Program(
        init=init,
        step=jax.jit(step, donate_argnums=0),
        refresh=jax.jit(refresh, donate_argnums=0),
        embed=jax.jit(lambda state, batch: state.nodes[0](batch)),
        classes=lambda state: state.nodes[0].head.classes(),
        update_model=update_model,
        schedule=never if sampler is None else sampler.schedule,
        num_classes=num_classes,
        loss_fn=loss_fn,
    )


def _trained_head(head: Any, sampler: Sampler | None, loss: Callable[..., Any], key_data: Array) -> TrainedHead:
    """The head that is trained: with the arrays of the one given."""
    own = TrainedHead(
        head.num_classes,
        table=head.vectors,
        biases=head.biases is not None,
        normalized=head.normalized,
        rngs=nnx.Rngs(0),
    )
    own.biases = nnx.data(head.biases)
    if head.counts is not None:
        counts = head.counts[...]
        own.counts = nnx.data(Constant(counts if own.placement is None else own.placement.place(counts)))
    own.key_data.set_value(key_data)
    own.use(sampler, loss)
    return own


def fit_program(
    program: Program,
    state: TrainState,
    batches: BatchSource,
    *,
    num_steps: int,
    folder: str | Path | None = None,
    evaluate: Callable[[TrainState], dict[str, Any]] | None = None,
    evaluate_at: Callable[[int], bool] = lambda step: False,
    **options: Any,
) -> TrainedProgram:
    """``fit`` of a program.

    Args:
        program: from ``build``.
        state: from ``Program.init``; donated.
        batches: see ``BatchSource``.
        num_steps: the step to stop at, counted from the start of the run.
        folder: of the run, or None to write nothing.
        evaluate: called with the state where ``evaluate_at(step)`` says so, ``step`` being the number of steps done.
        evaluate_at: see ``evaluate``.
        options: of ``fit``.

    Returns:
        The state and the records.
    """
    model, optimizer = state.nodes

    validation = None
    if evaluate is not None:
        validation = Validation(
            [()], lambda copy, batches: evaluate(TrainState.of(model, optimizer)), every=evaluate_at
        )
    found = fit(
        model,
        optimizer,
        batches,
        num_steps=num_steps,
        folder=folder,
        loss_fn=program.loss_fn,
        validation=validation,
        **options,
    )
    return TrainedProgram(TrainState.of(model, optimizer), found.records)
