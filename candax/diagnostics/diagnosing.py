"""Bias, variance and error of what methods estimate, against the number of samples: the loop over methods."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Key

from candax.base import Classes, KeyArray, Query, State
from candax.checks import checked
from candax.cosines import widened
from candax.diagnostics.checks import check_data, check_settings
from candax.diagnostics.draws import Draw, Draws, Exact, Gradients, exactly, full_ms, make_draws, step_ms
from candax.diagnostics.measures import measures_of, optimum_bias
from candax.diagnostics.methods import Method
from candax.diagnostics.result import MEASURES, Diagnostics
from candax.diagnostics.statistics import Measure

# A compiled call makes at most this many draws, a divisor of half of them all; progress is reported after each call.
_MOST_DRAWS_A_CALL = 32

Progress = Callable[[int, int], None]


@checked
def diagnose(
    classes: Classes,
    embeddings: Float[Array | np.ndarray, "..."],
    labels: Integer[Array | np.ndarray, "..."],
    methods: Sequence[Method],
    *,
    num_sampled: Sequence[int],
    num_draws: int = 64,
    key: KeyArray,
    top_k: int = 10,
    new_index: bool = True,
    progress: Progress | None = None,
) -> Diagnostics:
    """Measures sampler x loss pairs against the full softmax on one batch of examples.

    For each method and number of samples, ``num_draws`` candidate sets are drawn for the batch. Each gives an estimate
    of every example's log Z (the loss plus the mean of the true logits), of Z, and of p(true), and a gradient of the
    mean loss to embeddings and to class vectors with biases. ``Diagnostics`` lists what is measured of these.

    The gradient's bias is measured without the noise that its norm would count as bias: inner products of deviations
    from two independent halves of the draws. At equal numbers of samples all methods draw with the same keys, so that
    two losses are compared on the same candidates.

    Sampled softmax subtracts the log count of the true class too, so its loss is another classification problem's:
    its Z and p(true) are estimates only where counts are about 1, and their bias is large by design.

    Sampler states are built from ``classes``: a sampler that learns from labels knows none yet. Cost of a draw: about
    a training step. Memory: four arrays of the size of the class vectors beside a step's.

    Args:
        classes: the output layer: ``model.head.classes()``, ``program.classes(state)``, or vectors of any origin.
        embeddings: [B, dim], of the examples, which share candidate sets as a batch in training does.
        labels: [B, T], their true classes: distinct within an example, -1 pads, at least one each.
        methods: from ``pairs``, say.
        num_sampled: the numbers of samples that each method's sampler is asked for.
        num_draws: even, 4 or more; standard errors fall with its root.
        key: equal keys give equal results.
        top_k: of how many best classes to report the share that the candidates hold.
        new_index: whether samplers whose law holds over the construction of an index (``facts.law_over`` is "index")
            build a new one for every draw. False: the bias is that of one index.
        progress: called with the number of draws made so far and the number of all draws.

    Returns:
        A ``Diagnostics``.

    Raises:
        ValueError: if shapes do not match, labels are out of range, repeated or missing, numbers are not finite, or a
            number is out of range; what samplers raise.

    Example:
        >>> import candax as cx
        >>> vectors, embeddings = jax.random.normal(jax.random.key(0), (100, 8)), jnp.ones((4, 8))
        >>> classes = cx.Classes(vectors, None, None, jnp.int32(100))
        >>> methods = cx.diagnostics.pairs({"top_k": cx.samplers.top_k}, {"css": cx.losses.css})
        >>> labels = jnp.arange(4)[:, None]
        >>> key = jax.random.key(1)
        >>> result = diagnose(classes, embeddings, labels, methods, num_sampled=[10, 100], num_draws=4, key=key)
        >>> result.log_z_bias.value.shape
        (1, 2)
        >>> result.top_k_share.value.tolist()
        [[1.0, 1.0]]
        >>> bool(result.z_bias.value[0, 0] < -0.001), bool(abs(result.z_bias.value[0, 1]) < 1e-5)
        (True, True)
    """
    check_data(classes, embeddings, labels)
    num_valid = int(classes.num_valid)
    check_settings(methods, num_sampled, num_draws, top_k, num_valid)
    # Sums over thousands of draws would stand still in fewer bits.
    classes = dataclasses.replace(classes, vectors=_wide(classes.vectors), biases=_wide(classes.biases))
    query = Query(_wide(embeddings), jnp.asarray(labels, jnp.int32), classes)
    exact = exactly(query, min(top_k, classes.num_classes))
    # Of labels that are drawn from the model itself.
    nothing = exact._replace(gradients=jax.tree.map(jnp.zeros_like, exact.gradients))
    total = len(methods) * len(num_sampled) * num_draws
    cells: list[dict[str, Measure]] = []
    only_this_batch = []
    for method, (n, number) in itertools.product(methods, enumerate(num_sampled)):
        done = len(cells) * num_draws

        def report(draws: int, done: int = done) -> None:
            if progress is not None:
                progress(done + draws, total)

        sampler = method.sampler(number)
        anew = new_index and sampler.facts.law_over == "index"
        draws_of = partial(make_draws, sampler, method.loss, num_classes=num_valid, new_index=anew)
        key_init, key_draws = jax.random.split(jax.random.fold_in(key, number))
        state = sampler.init(key_init, classes)
        keys = jax.random.split(key_draws, (2, num_draws // 2))
        first, second = _halves(draws_of(), state, keys, query, exact, report)
        of_labels = jax.random.split(jax.random.fold_in(key_draws, 1), keys.shape)
        _, second_own = _halves(draws_of(own_labels=True), state, of_labels, query, nothing, lambda draws: None)
        others = {
            "optimum_bias": optimum_bias(second_own.classes),
            "step_ms": step_ms(sampler, method.loss, num_valid, state, keys[0, 0], query),
        }
        cells.append(measures_of(method.likelihood, exact, first, second) | others)
        if n == 0:
            only_this_batch.append(sampler.facts.law_over == "batch")

    shape = len(methods), len(num_sampled)
    arrays = {
        name: Measure(
            *(np.reshape([getattr(cell[name], part) for cell in cells], shape) for part in ("value", "standard_error"))
        )
        for name in MEASURES
    }
    return Diagnostics(
        sampler_names=tuple(method.sampler_name for method in methods),
        loss_names=tuple(method.loss_name for method in methods),
        num_sampled=tuple(int(number) for number in num_sampled),
        num_classes=num_valid,
        num_examples=len(embeddings),
        num_draws=num_draws,
        top_k=top_k,
        only_this_batch=tuple(only_this_batch),
        full_ms=float(full_ms(query).value),
        **arrays,
    )


def _halves(
    run: Draws, state: State, keys: Key[Array, "2 H"], query: Query, exact: Exact, report: Callable[[int], None]
) -> tuple[Draw, Draw]:
    """Both halves of the draws, the second compared with the mean gradient of the first."""
    # The first half has no earlier draws to be compared with: the exact gradient takes their place.
    total, first = _half(run, state, keys[0], query, exact, exact.gradients, report)
    earlier = jax.tree.map(lambda total: total / keys.shape[1], total)
    _, second = _half(run, state, keys[1], query, exact, earlier, lambda draws: report(keys.shape[1] + draws))
    return first, second


def _wide(array: Any) -> Any:
    if array is None:
        return None
    array = jnp.asarray(array)  # of NumPy's float64 first what JAX makes of it, without a warning
    return widened(array)


def _half(
    run: Draws,
    state: State,
    keys: Key[Array, " H"],
    query: Query,
    exact: Exact,
    earlier: Gradients,
    report: Callable[[int], None],
) -> tuple[Gradients, Draw]:
    """Half of the draws: the sum of their gradients, and each draw, as NumPy arrays in float64."""
    half = len(keys)
    size = max(divisor for divisor in range(1, _MOST_DRAWS_A_CALL + 1) if half % divisor == 0)
    totals = jax.tree.map(jnp.zeros_like, exact.gradients)
    parts = []
    for start in range(0, half, size):
        totals, draws = run(state, keys[start : start + size], query, exact, totals, earlier)
        parts.append(jax.tree.map(lambda array: np.asarray(array, np.float64), draws))
        report(start + size)
    return totals, jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
