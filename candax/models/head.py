"""The head: an output layer with a sampler and a loss."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.errors import TraceContextError
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Integer

from candax.base import KeyArray, SampledLogits, Sampler
from candax.blocks import Transform
from candax.checks import check_positive, checked, warn
from candax.losses import full_softmax, over_all_classes, sampled_softmax, subset_softmax, with_margin
from candax.losses.full import scores_all_classes
from candax.models.computed import ComputedVectors
from candax.models.embed import Embed
from candax.models.output_layer import OutputLayer, class_vectors, lengthened, log_prior
from candax.models.predictions import check_reduction, predictions
from candax.models.sampled import (
    check_has_blocks,
    check_sampler_and_loss,
    loss_over_all,
    reads_vectors,
    refreshes,
    warn_of_cosines,
)
from candax.models.scoring import draw_and_score
from candax.rows.lookups import record_draw
from candax.rows.slots import settle
from candax.rows.tables import (
    SUFFIX,
    Constant,
    DrawCount,
    Table,
    lagging,
    placement,
    placement_of,
    slots_of_tables,
    table_of,
)
from candax.samplers.sharded import sharded


class SamplerState(nnx.Variable):
    """The state of a head's sampler, a pytree."""


class Refreshes:
    """What is known of refreshes in this process."""

    called = False


# Keys for building a sampler's state are folded from a number that no step has.
INIT = 2**31 - 1


class Head(OutputLayer):
    """The output layer over many classes: ``head.loss(h, labels)`` in training, ``head(h)`` and ``head.top_k`` after.

    Put it behind any module and train with ``cx.value_and_grad`` and ``cx.Optimizer``: a step then costs the same for
    any number of classes. Under ``nnx.value_and_grad`` it works too, with a dense gradient of the class vectors.

    ``head.train()`` and ``head.eval()`` (as those of any module around it) switch between drawing anew at each call
    and changing nothing. Where the sampler keeps an index of the class vectors, call ``cx.refresh(model, step)``
    before each step.

    Args:
        num_classes: classes of the output space.
        dim: coordinates of a class vector; not needed with ``table`` or ``vectors``.
        sampler: of the candidates; None with a loss over all classes.
        loss: on ``SampledLogits``; hyperparameters by ``functools.partial``. Default: ``sampled_softmax``, without a
            sampler ``full_softmax``.
        table: the class vectors of another module to share: a ``cx.Embed`` (tied input and output), a ``cx.Head`` or a
            ``Table``, with at least ``num_classes`` rows. It keeps the values that it was initialised with there.
            (Flax' tree mode knows no shared variables, so tied tables need its graph mode, which is the default.)
        vectors: class vectors that are computed: a module (or a function without parameters) ``fn(ids[n]) -> [n, dim]``
            that only sees labels and candidates; with batch statistics ``fn(ids, where)``, see ``cx.sampled_loss``.
        counts: label frequencies [num_classes], for samplers that follow them, and for the biases.
        biases: whether classes have biases. Default: unless ``normalized``. They start at the log prior,
            log((count + 1) / sum), where ``counts`` are given: at 0, losses that judge each class by itself (``nce``,
            ``negative_sampling``) learn little else for long.
        normalized: logits are cosines, for margins (``cx.losses.arcface``).
        transform: of each logit before the loss and in all predictions, such as ``lambda o: 30 * jnp.tanh(o / 30)``.
        block_size: of ``cx.sampled_loss``; for all classes give ``partial(full_softmax, block_size=...)`` as the loss.
        dtype: of vectors and biases; logits are accumulated in float32.
        mesh: devices over which class rows are dealt, along its axis ``axis``; predictions may lie over its other axes.
            With ``table`` it is that of the table.
        axis: a name of the mesh's axes.
        num_shards: each of so many runs of classes draws its part of the samples from its own classes, by itself
            (``cx.samplers.sharded``). Default: the size of the axis. The same number gives the same training on every
            mesh, and without one, up to rounding.
        rngs: ``rngs.params`` initialises the vectors: normal with standard deviation 0.1 / sqrt(dim) (normalised heads:
            1 / sqrt(dim)), so that logits start near 0; and draws the key of the candidates.

    Raises:
        ValueError: for arguments that do not fit each other.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> from flax import nnx
        >>> head = cx.Head(100_000, 16, sampler=cx.samplers.log_uniform(64), rngs=nnx.Rngs(0))
        >>> loss = head.loss(jnp.ones((2, 5, 16)), jnp.array([[3, 1, 4, 1, -1], [5, 9, 2, 6, -1]]))
        >>> head.top_k(jnp.ones((2, 16)), 3)[1].shape
        (2, 3)
    """

    @checked
    def __init__(
        self,
        num_classes: int,
        dim: int | None = None,
        *,
        sampler: Sampler | None = None,
        loss: Callable[..., Float[Array, " B"]] | None = None,
        table: Embed | OutputLayer | Table | None = None,
        vectors: Callable[..., Float[Array, "n dim"]] | None = None,
        counts: Float[Array | np.ndarray, " num_classes"] | Int[Array | np.ndarray, " num_classes"] | None = None,
        biases: bool | None = None,
        normalized: bool = False,
        transform: Transform | None = None,
        block_size: int | None = None,
        dtype: DTypeLike = jnp.float32,
        mesh: Mesh | None = None,
        axis: str = "classes",
        num_shards: int | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        check_positive("num_classes", num_classes)
        check_positive("dim", dim, optional=True)
        check_positive("block_size", block_size, optional=True)
        check_has_blocks(sampler, block_size)
        if loss is None:
            loss = full_softmax if sampler is None else sampled_softmax
        if normalized and biases:
            raise ValueError("expected no biases with normalized=True, whose logits are cosines: leave biases out.")
        _check_counts(counts, num_classes)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"expected dtype to be one of floats, got {jnp.dtype(dtype).name}.")
        self.num_classes, self.normalized, self.transform = num_classes, normalized, transform
        where = placement(mesh, axis, num_shards, num_classes)
        self.vectors = class_vectors(
            num_classes,
            dim,
            table=table,
            vectors=vectors,
            normalized=normalized,
            dtype=dtype,
            where=where,
            rngs=rngs,
        )
        self.placement = placement_of(self.vectors)  # which a shared table brings along
        if (slots := slots_of_tables(table).get(id(self.vectors))) is not None:  # an exact optimizer's, made before
            setattr(self, f"vectors{SUFFIX}", slots)
        rows = num_classes if isinstance(self.vectors, ComputedVectors) else self.vectors.shape[0]
        # A copy, as a step donates what the model holds.
        of_classes = None if counts is None else jnp.array(counts, jnp.float32)
        of_rows = lengthened(of_classes, rows)
        if of_rows is not None and self.placement is not None:
            of_rows = self.placement.place(of_rows)
        self.counts = None if of_rows is None else Constant(of_rows)
        biases = not normalized if biases is None else biases
        self.biases = table_of(log_prior(of_classes, rows).astype(dtype), self.placement) if biases else None
        self.block_size = block_size
        self.deterministic = False
        key = rngs.params()
        # Its data, which checkpoints hold, and beside them what kind of key they make.
        self.key_data, self.key_impl = Constant(jax.random.key_data(key)), jax.random.key_impl(key)
        self.draws = DrawCount(jnp.int32(0))
        self.sampler: Sampler | None = None
        self.loss_function: Any = None
        self._given: tuple[Any, Any] = None, None
        self.use(sampler, loss)

    @checked
    def use(self, sampler: Sampler | None, loss: Callable[..., Float[Array, " B"]]) -> None:
        """Changes sampler and loss, on the host and between steps; the sampler's state is made anew.

        Args:
            sampler: of the candidates; None with a loss over all classes.
            loss: on ``SampledLogits``, or over all classes.

        Raises:
            ValueError: where they do not fit each other.
        """
        # Of what this head has itself, the parts that it was given.
        if sampler is self.sampler:
            sampler = self._given[0]
        if loss is self.loss_function:
            loss = self._given[1]
        given = sampler, loss
        if self.placement is not None and sampler is not None:
            sampler = sharded(sampler, self.placement.num_shards, mesh=self.placement.mesh, axis=self.placement.axis)
        check_sampler_and_loss(sampler, loss)  # of shards: their slots are not alike where the whole sampler's are
        # Vectors that are computed may have length 1 already.
        if not self.normalized and not isinstance(self.vectors, ComputedVectors):
            warn_of_cosines(loss)
        transformed = _after(self.transform, loss)
        self._given = given
        self.sampler, self.loss_function = sampler, transformed
        computed = isinstance(self.vectors, ComputedVectors)
        if sampler is not None and computed and reads_vectors(sampler, self.num_classes):
            self.vectors.keep()
            if not refreshes(sampler):
                warn(
                    "this head's sampler looks at class vectors, which are computed: it sees those of now, computed "
                    "again at its refreshes, and it has none. Give it a schedule: cx.samplers.every(sampler, 50), and "
                    "call candax.refresh(model, step) before each step, as cx.training.fit does."
                )
        # Said to be data, as it may be None now and a variable after the next call.
        self.state = nnx.data(None if sampler is None else SamplerState(self._initial_state()))

    def step_key(self) -> KeyArray:
        """The key of the next draw."""
        return self._key_of(self.draws[...])

    def _key_of(self, number: Any) -> KeyArray:
        return jax.random.fold_in(jax.random.wrap_key_data(self.key_data[...], impl=self.key_impl), number)

    def _initial_state(self) -> Any:
        assert self.sampler is not None
        key = self._key_of(INIT)
        # Over a mesh op by op would be slow. (On one device it lets samplers look at the counts on the host.)
        init = self.sampler.init if self.placement is None else jax.jit(self.sampler.init)
        # Copies: a step donates the model, and an array that the sampler keeps as it is would be donated twice.
        return jax.tree.map(jnp.array, init(key, self.classes()))

    @checked
    def loss(
        self,
        h: Float[Array | np.ndarray, "..."],
        labels: Integer[Array | np.ndarray, "..."],
        *,
        where: Array | np.ndarray | None = None,
        weights: Array | np.ndarray | None = None,
        reduction: str = "mean",
        return_draw: bool = False,
        runs: Integer[Array | np.ndarray, "..."] | None = None,
        more_labels: Integer[Array | np.ndarray, "..."] | None = None,
    ) -> Any:
        """The loss of predictions: ``cx.sampled_loss`` with this head's classes, sampler and keys.

        Args:
            h: embeddings ``[..., dim]``.
            labels: integers ``[...]``, or ``[..., T]`` for several true classes per prediction; -1 pads.
            where: ``bool[...]``, which predictions count.
            weights: ``float[...]``.
            reduction: "mean" over the predictions that count, "sum" or "none".
            return_draw: return the ``Draw`` too; its ``statistics()`` say how good the candidates are.
            runs: where labels are neighbours in runs of words, these (-1: no word): label t of the prediction
                ``r L + i`` is -1 or the word at the t-th of the places ``i - w ... i - 1, i + 1 ... i + w`` of run r,
                with ``2 w = T``, and distinct. Class vectors are then read once per place instead of once per label.
            more_labels: true classes beyond those in ``labels``, see ``cx.sampled_loss``.

        Returns:
            The loss, float32; with ``return_draw`` the loss and the ``Draw``.

        Raises:
            ValueError: for arguments whose types or shapes do not fit.
        """
        check_reduction(reduction)
        if np.ndim(h) and not isinstance(self.vectors, ComputedVectors) and h.shape[-1] != self.dim:
            are_logits = " Give what goes into the head, not its logits." if h.shape[-1] == self.num_classes else ""
            raise ValueError(
                f"expected embeddings [..., {self.dim}], as wide as class vectors, got {list(h.shape)}.{are_logits}"
            )
        if runs is not None:
            _check_runs(runs, h, labels)
        sizes = {"num_classes": self.num_classes, "num_valid": self.num_classes}
        flat = predictions(
            h, labels, **sizes, where=where, weights=weights, are_distinct=runs is not None, more_labels=more_labels
        )
        if self.sampler is None:
            if return_draw:
                raise ValueError("expected a sampler with return_draw=True, got a head without one.")
            losses = loss_over_all(flat, self._differentiable(), self.loss_function, self.num_classes)
            return flat.reduce(losses, reduction)
        computed = isinstance(self.vectors, ComputedVectors)
        state = self.state
        assert state is not None
        losses, draw = draw_and_score(
            flat,
            self._classes(
                self.vectors.kept() if computed else lagging(self, "vectors") or self.vectors,
                lagging(self, "biases") or self.biases,
            ),
            sampler=self.sampler,
            state=state.get_value(),
            key=self.step_key(),
            loss=self.loss_function,
            num_classes=self.num_classes,
            block_size=self.block_size,
            vectors=self.vectors.of if computed else None,
            placement=self.placement,
            runs=None if runs is None else jnp.asarray(runs),
        )
        if not self.deterministic:
            self._warn_without_refresh()
            try:
                record_draw(self.draws, draw)
                self.draws.set_value(jnp.asarray(self.draws[...]) + 1)  # NumPy's arrays cannot be written to
            except TraceContextError as error:
                error.add_note(
                    "A head in training mode counts its draws, here in a transformation that was not given the head. "
                    "Give the model as an argument to nnx.jit, nnx.vmap or candax.value_and_grad, or call head.eval()."
                )
                raise
        value = flat.reduce(losses, reduction)
        return (value, draw) if return_draw else value

    def _warn_without_refresh(self) -> None:
        assert self.sampler is not None
        if not Refreshes.called and refreshes(self.sampler):
            warn(
                "this head's sampler keeps an index of the class vectors that is to be rebuilt now and then, and "
                "candax.refresh was never called: call candax.refresh(model, step) before each step."
            )

    @checked
    def grow(self, num_classes: int, *, counts: Any = None, rngs: nnx.Rngs) -> None:
        """Adds classes at the end: their vectors are drawn anew, all others are kept; the sampler's state is made anew.

        Call it on the host, then ``optimizer.grow(model)`` to give the new rows their optimizer state. Every other head
        that shares the table keeps its number of classes.

        Args:
            num_classes: from now on.
            counts: label frequencies of all classes, where the head has counts.
            rngs: ``rngs.params`` draws the new rows, as spread as the old ones are.
        """
        if isinstance(self.vectors, ComputedVectors):
            raise ValueError("expected class vectors of a table to grow, got computed ones: make a new head.")
        if self.placement is not None:
            raise ValueError("expected a head without mesh and num_shards to grow: save its rows and make a new head.")
        if num_classes < self.num_classes or (counts is None) != (self.counts is None):
            raise ValueError(
                f"expected num_classes >= {self.num_classes}, and counts of all classes if and only if the head has "
                f"counts; got {num_classes} and counts={'None' if counts is None else 'given'}."
            )
        _check_counts(counts, num_classes)
        settle(self)  # else new biases would take the steps that unused rows have missed
        old, missing = self.vectors[...], num_classes - self.vectors.shape[0]
        if missing > 0:
            new = jax.random.normal(rngs.params(), (missing, old.shape[1])) * jnp.std(old.astype(jnp.float32))
            self.vectors.set_value(jnp.concatenate([old, new.astype(old.dtype)]))
        added = slice(self.num_classes, num_classes)
        self.num_classes = num_classes
        rows = self.vectors.shape[0]
        of_classes = None if counts is None else jnp.array(counts, jnp.float32)
        if self.counts is not None:
            self.counts.set_value(lengthened(of_classes, rows))
        if self.biases is not None:
            biases = lengthened(jnp.asarray(self.biases[...]), rows)
            self.biases.set_value(biases.at[added].set(log_prior(of_classes, rows)[added].astype(biases.dtype)))
        if self.state is not None:
            self.state.set_value(self._initial_state())

    def set_view(self, deterministic: bool | None = None) -> None:
        """For ``nnx.view``.

        Args:
            deterministic: draws are the same at each call, and nothing changes.
        """
        if deterministic is not None:
            self.deterministic = deterministic


def _check_runs(runs: Any, h: Any, labels: Any) -> None:
    places, shape = np.shape(runs), np.shape(labels)
    fits = len(places) == 2 and len(shape) == 2 and shape[0] == math.prod(places) and shape[1] and shape[1] % 2 == 0
    if not fits or np.ndim(h) != 2:
        raise ValueError(
            "expected runs [R, L] with embeddings [R L, dim] and labels [R L, 2 w], w neighbours on either side of "
            f"each place; got runs {list(places)}, embeddings {list(np.shape(h))} and labels {list(shape)}."
        )


def _check_counts(counts: Any, num_classes: int) -> None:
    if counts is None:
        return
    if np.shape(counts) != (num_classes,):
        raise ValueError(f"expected counts of shape ({num_classes},), one per class, got {np.shape(counts)}.")
    if isinstance(counts, jax.core.Tracer):
        return
    values = np.asarray(counts, np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        raise ValueError(f"expected finite counts >= 0, got {values[wrong[0]]:g} for class {wrong[0]}.")
    if values.sum() > np.finfo(np.float32).max:
        raise ValueError(f"expected counts whose sum float32 can hold, got {values.sum():g}: divide them by a number.")


def _after(transform: Transform | None, loss: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of transformed logits."""
    if transform is None:
        return loss

    def where(mask: Array, logits: Array) -> Array:
        # What is masked holds zeros, where a root has no finite gradient, and NaN would come back out of it.
        return jnp.where(mask, transform(jnp.where(mask, logits, 1.0)), 0.0)

    def transformed(logits: SampledLogits) -> SampledLogits:
        counts = jnp.any(logits.true_mask, axis=1, keepdims=True)
        sampled = where(logits.sampled_mask & counts, logits.sampled)
        return dataclasses.replace(logits, true=where(logits.true_mask, logits.true), sampled=sampled)

    if not scores_all_classes(loss):
        return with_margin(transformed, loss)
    if getattr(loss, "func", loss) is not full_softmax:
        raise ValueError(
            "expected full_softmax or a loss on candidates with transform=; of over_all_classes(loss) transform inside."
        )
    if getattr(loss, "keywords", {}).get("block_size") is not None:
        raise ValueError(
            "expected full_softmax without block_size with transform=, got one in blocks, which score logits as they "
            "are: leave block_size out and hold all logits at once, or take a sampler."
        )
    return over_all_classes(with_margin(transformed, subset_softmax))
