"""The sampled loss as a pure function: draw candidates, score them and the labels, reduce. Heads are built on it."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from candax.base import Classes, KeyArray, Query, Sampler, State
from candax.checks import checked, described, warn
from candax.losses.common import functions_in, innermost
from candax.losses.d_softmax import d_softmax, d_softmax_b
from candax.losses.full import full_softmax, of_number, scores_all_classes
from candax.losses.likelihood import css
from candax.losses.margins import arcface, cosface
from candax.models.predictions import Predictions, check_reduction, predictions
from candax.models.scoring import VectorsOf, as_arrays, draw_and_score, without_gradient

# Steps in which a sampler is looked for to be due.
_LOOK_AHEAD = 5000
_OF_COSINES = (arcface, cosface, d_softmax, d_softmax_b)


@checked
def sampled_loss(
    embeddings: Float[Array | np.ndarray, "..."],
    labels: Integer[Array | np.ndarray, "..."],
    classes: Classes,
    *,
    sampler: Sampler | None,
    state: State = (),
    key: KeyArray | None = None,
    loss: Callable[..., Float[Array, " B"]],
    where: Array | np.ndarray | None = None,
    weights: Array | np.ndarray | None = None,
    reduction: str = "mean",
    block_size: int | None = None,
    return_draw: bool = False,
    vectors: VectorsOf | None = None,
    more_labels: Integer[Array | np.ndarray, "..."] | None = None,
) -> Any:
    """The loss of predictions over a large output layer, from a few sampled classes: ``sum(w loss) / sum(w)``.

    A pure function for any framework, inside your own ``jax.value_and_grad``: gradients go to ``embeddings`` and to
    ``classes.vectors`` and ``classes.biases``. Where these are arrays, their gradients are dense; where they are views
    of ``cx.rows.value_and_grad``, row gradients.

    Labels of -1 are no labels; a prediction without one, or with ``where`` False, counts for nothing: neither the
    sampler nor the loss sees its embedding. A class that stands twice among the labels of a prediction counts once. A
    label out of range makes the loss NaN.

    Args:
        embeddings: ``[..., dim]``, of any floating-point type; logits are accumulated in float32.
        labels: integers ``[...]``, or ``[..., T]`` for several true classes per prediction: told apart by rank.
        classes: the output layer. Where it has padding rows, make ``num_valid`` outside of ``jit`` for the losses that
            use the number of classes, ``ranking`` and ``gbce``: inside, or passed into it, they count these rows, too.
        sampler: of the candidates; None with a loss over all classes (``cx.losses.full_softmax``).
        state: the sampler's, from ``sampler.init(key, classes)``.
        key: of this step, such as ``jax.random.fold_in(key, step)``.
        loss: on ``SampledLogits``; or one over all classes.
        where: ``bool[...]``, which predictions count.
        weights: ``float[...]``.
        reduction: "mean", "sum", or "none" for losses of the predictions' shape, times their weights.
        block_size: the most predictions scored at a time, computed again in the backward pass, so that ``[B, S]``
            logits never exist at once (at least those of one group). None: all at once. Only with a sampler.
        return_draw: return the ``Draw`` too, for ``cx.rows.update_sampler`` and for its ``statistics()``.
        vectors: where class vectors are computed, ``fn(ids[n]) -> [n, dim]``; then ``classes.vectors`` is only what the
            sampler sees, ``jnp.zeros((num_classes, 0))`` for one that looks at none. Among the ids are fillers; a
            function with batch statistics takes ``fn(ids, where)`` and leaves out those where ``where`` is False.
        more_labels: ``[M, 2]``, pairs (number of a prediction, true class) for predictions that have more true classes
            than ``labels`` has slots; ``labels`` must then be a random subset of them. They are no negatives where they
            are drawn, at little cost for any number of them. Pairs with a -1 are padding. The others must be distinct,
            and their classes not among the ``labels`` of the prediction: each counts as one label more. A prediction
            out of range makes all losses NaN.

    Returns:
        The loss, float32; with ``return_draw`` the loss and the ``Draw``.

    Raises:
        ValueError: for arguments that do not fit each other.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.zeros((1000, 8)))
        >>> sampler, key = cx.samplers.uniform(64), jax.random.key(0)
        >>> loss = cx.sampled_loss(
        ...     jnp.ones((4, 7, 8)), jnp.zeros((4, 7), jnp.int32), classes,
        ...     sampler=sampler, state=sampler.init(key, classes), key=key, loss=cx.losses.css,
        ... )
        >>> abs(float(loss) - 6.9) < 0.1  # log 1000
        True
    """
    check_reduction(reduction)
    check_sampler_and_loss(sampler, loss)
    num_classes = _num_valid(classes)
    flat = predictions(
        embeddings,
        labels,
        num_classes=num_classes,
        num_valid=classes.num_valid,
        where=where,
        weights=weights,
        more_labels=more_labels,
    )
    if sampler is None:
        if return_draw or vectors is not None:
            raise ValueError("expected a sampler with return_draw and vectors, got sampler=None.")
        check_has_blocks(sampler, block_size)
        return flat.reduce(loss_over_all(flat, as_arrays(classes), loss, num_classes), reduction)
    if key is None:
        raise ValueError("expected key=, a jax.random.key of this step, to draw candidates with; got none.")
    _check_state(sampler, state, key, classes)
    losses, draw = draw_and_score(
        flat,
        classes,
        sampler=sampler,
        state=state,
        key=key,
        loss=loss,
        num_classes=num_classes,
        block_size=block_size,
        vectors=vectors,
    )
    value = flat.reduce(losses, reduction)
    return (value, draw) if return_draw else value


def reads_vectors(sampler: Sampler, num_classes: int) -> bool:
    """Whether a sampler looks at class vectors, or only at labels, counts and embeddings."""

    def draw(vectors: Array, key: KeyArray) -> Any:
        classes = Classes(vectors, None, jnp.ones(num_classes))
        query = Query(jnp.ones((1, vectors.shape[1])), jnp.zeros((1, 1), jnp.int32), classes)
        return sampler.sample(sampler.init(key, classes), key, query)

    vectors = jax.ShapeDtypeStruct((num_classes, 2), jnp.float32)
    traced = jax.make_jaxpr(draw)(vectors, jax.eval_shape(jax.random.key, 0)).jaxpr
    return any(var is traced.invars[0] for equation in traced.eqns for var in equation.invars)


def refreshes(sampler: Sampler) -> bool:
    """Whether a sampler is refreshed at all: one that is not due in the first steps is taken for one that never is."""
    return any(map(sampler.schedule, range(_LOOK_AHEAD)))


def loss_over_all(
    flat: Predictions, classes: Classes, loss: Callable[..., Array], num_classes: int
) -> Float[Array, " B"]:
    """The losses of all predictions by a loss that scores all classes itself, ``num_classes`` of the rows."""
    loss = of_number(loss, num_classes)
    if flat.more_labels is None or getattr(loss, "func", loss) is full_softmax:  # which knows no negatives
        return loss(flat.embeddings, flat.labels, classes)
    return loss(flat.embeddings, flat.labels, classes, flat.more_labels)


def _num_valid(classes: Classes) -> int:
    """The number of valid classes, where it is known while tracing; else that of the rows."""
    return classes.num_classes if isinstance(classes.num_valid, jax.core.Tracer) else int(classes.num_valid)


def check_has_blocks(sampler: Sampler | None, block_size: int | None) -> None:
    """Raises ValueError for blocks of predictions without a sampler, which nothing would be scored in."""
    if sampler is None and block_size is not None:
        raise ValueError(
            f"expected a sampler with block_size={block_size}, the most predictions that are scored at a time, got "
            "none. For all classes give loss=functools.partial(cx.losses.full_softmax, block_size=...), the most "
            "classes at a time."
        )


def check_sampler_and_loss(sampler: Sampler | None, loss: Callable[..., Any]) -> None:
    """Raises ValueError for unknown keywords of a loss, or a sampler and a loss that do not fit each other."""
    if isinstance(loss, partial):
        try:
            inspect.signature(loss)
        except (TypeError, ValueError) as error:
            known = [
                name
                for name, parameter in inspect.signature(loss.func).parameters.items()
                if parameter.kind is parameter.KEYWORD_ONLY
            ]
            name = getattr(loss.func, "__name__", repr(loss.func))
            raise ValueError(
                f"expected the keywords of the loss {name} to be among {known}, got {sorted(loss.keywords)}."
            ) from error
    if scores_all_classes(loss) != (sampler is None):
        raise ValueError(
            "expected a sampler with every loss but full_softmax and over_all_classes(...), each of which scores all "
            f"classes itself and takes none: got sampler={sampler} with {described(loss)}."
        )
    inner, keywords = innermost(loss)
    redraws = inner is css and keywords.get("complement") == "redraw"
    if redraws and sampler is not None and not sampler.facts.alike:
        raise ValueError(
            'expected a sampler whose slots are all drawn from one distribution for css with complement="redraw", '
            "which counts on it: unigram with replacement, say, but no mixture, no tail and no shards; got one of "
            f'{sampler.facts}. Take complement="drop", which goes with every sampler.'
        )


def warn_of_cosines(loss: Callable[..., Any]) -> None:
    """Warns of a loss that takes cosines, for heads whose logits are none."""
    name = next((part.__name__ for part in functions_in(loss) if part in _OF_COSINES), None)
    if name is not None:
        warn(
            f"{name} takes cosines, which this head's logits are only if its class vectors and embeddings have length "
            "1 already: make the head with normalized=True."
        )


def _check_state(sampler: Sampler, state: State, key: KeyArray, classes: Classes) -> None:
    """Raises ValueError where a state is of another sampler or of another number of classes."""
    try:
        wanted = jax.eval_shape(sampler.init, key, without_gradient(classes))
    except jax.errors.JAXTypeError:
        return  # a sampler whose init computes on the host
    shapes = [
        [(jnp.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in jax.tree.leaves(tree)]
        for tree in (wanted, state)
    ]
    structures = [str(jax.tree.structure(tree)) for tree in (wanted, state)]
    if structures[0] != structures[1] or shapes[0] != shapes[1]:
        raise ValueError(
            f"expected the state of this sampler for {classes.num_classes} classes, got another one: its arrays are "
            f"{shapes[1]} where {shapes[0]} are expected. Make it by sampler.init(key, classes) of these classes."
        )
