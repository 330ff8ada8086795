"""From draws to measures: what is averaged over what, for one method at one number of samples."""

import jax
import numpy as np
from jaxtyping import Float

from candax.diagnostics.draws import Closeness, Draw, Exact
from candax.diagnostics.result import MEASURES
from candax.diagnostics.statistics import NOTHING, Measure, clipped_root, mean, mean_where, root, squared_bias, variance


def measures_of(likelihood: bool, exact: Exact, first: Draw, second: Draw) -> dict[str, Measure]:
    """All measures of one method at one number of samples."""
    draws = jax.tree.map(lambda *halves: np.concatenate(halves), first, second)
    measures = {
        "num_candidates": mean(draws.num_candidates.mean(axis=1)),
        "effective_sample_size": mean(draws.effective_sample_size.mean(axis=1)),
        "top_k_share": mean_where(draws.top_k_share, np.asarray(exact.top_counts.any(axis=1))),
    }
    for name in ("embedding", "class"):
        part = "embeddings" if name == "embedding" else "classes"
        square = float(np.sum(np.asarray(getattr(exact.gradients, part), np.float64) ** 2))
        closeness = _gradient_measures(square, getattr(draws, part), getattr(second, part))
        measures |= {f"{name}_gradient_{measure}": value for measure, value in closeness.items()}
    if likelihood:
        log_z, mean_true = (np.asarray(array, np.float64) for array in (exact.log_normalizer, exact.mean_true))
        measures |= _likelihood_measures(log_z, np.exp(mean_true - log_z), draws.log_z_error)
    return {name: measures.get(name, NOTHING) for name in MEASURES}


def optimum_bias(second_half: Closeness) -> Measure:
    """|E g| over the root of E |g|^2, where labels were drawn from the model and the exact gradient is 0."""
    size = mean(np.asarray(second_half.square)).value
    return clipped_root(_divided(squared_bias(np.asarray(second_half.with_earlier)), float(size)))


def _likelihood_measures(
    log_z: Float[np.ndarray, " B"], p: Float[np.ndarray, " B"], log_z_error: Float[np.ndarray, "D B"]
) -> dict[str, Measure]:
    def root_mean_square(errors: Float[np.ndarray, "D B"]) -> Measure:
        return root(mean(np.mean(errors**2, axis=1)))

    ratio, inverse = np.exp(log_z_error), np.exp(-log_z_error)
    error = root_mean_square(log_z_error)
    size = np.sqrt(np.mean(log_z**2))
    return {
        "z_bias": mean(ratio.mean(axis=1) - 1),
        "z_variance": variance(ratio),
        "z_relative_error": root_mean_square(ratio - 1),
        "log_z_bias": mean(log_z_error.mean(axis=1)),
        "log_z_variance": variance(log_z_error),
        "log_z_error": error,
        "log_z_relative_error": _divided(error, size),
        "p_true_bias": mean(np.mean(p * (inverse - 1), axis=1)),
        "p_true_variance": variance(p * inverse),
        "p_true_relative_error": root_mean_square(inverse - 1),
    }


def _gradient_measures(exact_square: float, draws: Closeness, second_half: Closeness) -> dict[str, Measure]:
    product = np.sqrt(draws.square * exact_square)
    cosine = np.divide(draws.with_exact, product, out=np.zeros_like(product), where=product > 0)
    square = _divided(squared_bias(np.asarray(second_half.with_earlier)), exact_square)
    return {
        "squared_bias": square,
        "bias": clipped_root(square),
        "error": root(_divided(mean(np.asarray(draws.squared_error)), exact_square)),
        "noise": clipped_root(_less(_divided(mean(np.asarray(draws.squared_error)), exact_square), square)),
        "cosine": mean(cosine) if exact_square > 0 else NOTHING,
    }


def _less(measure: Measure, other: Measure) -> Measure:
    return Measure(np.asarray(measure.value - other.value), np.hypot(measure.standard_error, other.standard_error))


def _divided(measure: Measure, by: float) -> Measure:
    """A measure divided by the size of what it measures; nan where that is 0."""
    return Measure(*(np.asarray(part / by if by > 0 else np.nan * part) for part in measure))
