"""What a diagnosis says: arrays of measures over methods and numbers of samples."""

import dataclasses
from typing import Any

import numpy as np

from candax.diagnostics.statistics import Measure


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnostics:
    """Every measure as a value and a standard error, each float64 [methods, num_sampled].

    r = Z_hat / Z is the estimate of an example's normaliser over the exact one, log Z = log sum_c exp(o_c), and
    log Z_hat = loss + mean of the true logits. p(true) is exp(mean of the true logits - log Z): with one label its
    probability, with several the geometric mean of theirs. E is over draws, the measures are means over examples (of
    squares, under the root, for root mean squares). g is the gradient of the mean loss. Where a loss gives no
    likelihood all measures of Z, log Z and p(true) are nan.

    Attributes:
        sampler_names: [methods].
        loss_names: [methods].
        num_sampled: what each sampler was asked for, [num_sampled].
        num_classes: valid classes.
        num_examples: examples that measures are means over.
        num_draws: draws of every method at every number of samples.
        top_k: how many best classes ``top_k_share`` asks for.
        only_this_batch: [methods], whether counts of this sampler are right only over the choice of the batch
            (``facts.law_over`` is "batch"): as the batch stayed fixed, its biases are those of these examples.
        full_ms: milliseconds of the full softmax with its gradients, to compare with ``step_ms``.
        num_candidates: candidates that an example sees, hits included, padding not.
        z_bias: E r - 1.
        z_variance: Var r.
        z_relative_error: root mean square of r - 1.
        log_z_bias: E log Z_hat - log Z, in nats.
        log_z_variance: Var log Z_hat, in square nats.
        log_z_error: root mean square of log Z_hat - log Z, in nats.
        log_z_relative_error: the same over the root mean square of log Z (one log Z alone may be 0).
        p_true_bias: E p_hat - p.
        p_true_variance: Var p_hat.
        p_true_relative_error: root mean square of p_hat / p - 1.
        embedding_gradient_squared_bias: |E g - g_full|^2 / |g_full|^2, unbiased, so that it may be negative.
        embedding_gradient_bias: its root, 0 where it is negative.
        embedding_gradient_error: root mean square over draws of |g - g_full| / |g_full|.
        embedding_gradient_noise: the root of E |g - E g|^2 over |g_full|: what differs from step to step.
        embedding_gradient_cosine: mean over draws of the cosine between g and g_full, 0 where g is 0.
        class_gradient_squared_bias: as for the embeddings, for the gradient to class vectors and biases together.
        class_gradient_bias: the same.
        class_gradient_error: the same.
        class_gradient_noise: the same.
        class_gradient_cosine: the same.
        optimum_bias: |E g| over the root of E |g|^2, of class vectors and biases, with labels drawn from the model's
            own softmax, so that the full softmax's mean gradient is 0, and with log Z subtracted from logits, where nce
            has its optimum (other losses have theirs at any constant). 0 says that this loss leaves right probabilities
            alone: its optimum is the right one. Also 0 where the estimate of the square is negative.
        step_ms: milliseconds of a draw, its logits, loss and gradients; that of the full softmax is ``full_ms``.
        effective_sample_size: (sum w)^2 / sum w^2 over the candidates that are not hits, w = exp(o) / expected count:
            how many equally weighted samples these are worth; 0 without any.
        top_k_share: share of the exact ``top_k`` best classes of an example that are candidates. Labels do not count,
            on either side, because they are scored whatever was sampled; examples whose best classes are all labels
            are left out.
    """

    sampler_names: tuple[str, ...]
    loss_names: tuple[str, ...]
    num_sampled: tuple[int, ...]
    num_classes: int
    num_examples: int
    num_draws: int
    top_k: int
    only_this_batch: tuple[bool, ...]
    full_ms: float
    num_candidates: Measure
    z_bias: Measure
    z_variance: Measure
    z_relative_error: Measure
    log_z_bias: Measure
    log_z_variance: Measure
    log_z_error: Measure
    log_z_relative_error: Measure
    p_true_bias: Measure
    p_true_variance: Measure
    p_true_relative_error: Measure
    embedding_gradient_squared_bias: Measure
    embedding_gradient_bias: Measure
    embedding_gradient_error: Measure
    embedding_gradient_noise: Measure
    embedding_gradient_cosine: Measure
    class_gradient_squared_bias: Measure
    class_gradient_bias: Measure
    class_gradient_error: Measure
    class_gradient_noise: Measure
    class_gradient_cosine: Measure
    optimum_bias: Measure
    step_ms: Measure
    effective_sample_size: Measure
    top_k_share: Measure

    def to_rows(self) -> list[dict[str, Any]]:
        """One dictionary for each method and number of samples, fit for JSON: nan becomes None.

        Returns:
            ``sampler``, ``loss``, ``num_sampled``, and of every measure ``<name>`` and ``<name>_standard_error``.
        """
        rows = []
        for m, (sampler, loss) in enumerate(zip(self.sampler_names, self.loss_names, strict=True)):
            for n, num_sampled in enumerate(self.num_sampled):
                row: dict[str, Any] = {"sampler": sampler, "loss": loss, "num_sampled": num_sampled}
                for name in MEASURES:
                    measure = getattr(self, name)
                    row[name] = _number(measure.value[m, n])
                    row[f"{name}_standard_error"] = _number(measure.standard_error[m, n])
                rows.append(row)
        return rows


MEASURES = tuple(field.name for field in dataclasses.fields(Diagnostics) if field.type is Measure)


def _number(value: np.float64) -> float | None:
    return float(value) if np.isfinite(value) else None
