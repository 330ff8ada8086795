"""Complementary Sum Sampling, figure 2a: softmax regression trained by likelihood approximations and by other losses.

    candax experiment css-figure2a        (about 3 minutes of one core)

Setting: C = 1000 classes, N = 2000 points, D = 100, data drawn from the model (standard normal class vectors and
inputs), batches of 50, momentum .99, 2000 iterations, S = 20 samples for each example (``--shared``: for the batch;
both are 50 x 21 exponentials). Importance samples follow the frequency f; Bernoulli probabilities are f^0.54. Samples
that hit the true class are dropped, with weights 1 / (S f): as unbiased as redrawing them. NCE has z = 1. Negative
sampling and ranking (margin log(C - 1)) take the mean over the samples: for ranking that is the paper's sum with a
20th of the learning rate.

Learning rates, of seven from .001 to 1: one for exact, CSS-IS and CSS-Bernoulli, at which the worst of the three ends
highest; for BlackOut and ranking the largest that converges, as the paper says (the likelihood never falls by more than
0.1); for the three methods that the paper leaves out the one that ends highest.

Expected with seed 0, exact log-likelihood per point at the end, within a factor of 2. A uniform distribution has
-6.91, the true model -.68: what works well passes the latter, as 100,000 parameters can separate 2000 points.

* exact -.0008, CSS-IS -.0011, CSS-Bernoulli -.0017, all with rate .0316: alike until they are near 0, as in the paper.
* BlackOut -.11 (rate .1) and ranking -.16 (rate .316): they work, but the paper's rule for their rates is what holds
  them back: at the best of the seven they end at -.016 and -.005.
* NCE ends no better than uniform and negative sampling ends at -3.2, with any rate: unusable, as
  the paper says. NCE has no chance: without biases the logits change sign with the input, so that exp(logits) cannot
  sum to 1 for both an input and its opposite, unless they are nearly constant.
* Standard IS is significantly worse at the rate of CSS (-.20), but not with a small rate of its own: -.024, slowly.

236 of the 1000 classes are never seen (f^0.54 sums to 20.03): f and f^0.54 never draw them, and their vectors stay
exactly 0 where the likelihood would move them. It hardly matters here: with add-one smoothing (Bernoulli still with 20
expected samples) CSS-IS ends at -.0022 and CSS-Bernoulli at -.0017, and on fresh inputs either way about .1 % of the
probability is on classes never seen.

Source: Botev, Zheng and Barber, Complementary Sum Sampling for Likelihood Approximation in Large Scale Classification
(2017), section 6.1 and figure 2a.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from candax import losses, samplers
from candax.experiments import softmax_regression
from candax.experiments.softmax_regression import EXACT, NUM_SAMPLED, Curves, Method, Problem, here
from candax.recipes import common

POWER = 0.54
LIKELIHOOD = ("exact", "CSS-IS", "CSS-Bernoulli")
OTHERS = ("BlackOut", "ranking")
LEFT_OUT = ("standard IS", "NCE", "negative sampling")
IS_AT_CSS_RATE = "standard IS, rate of CSS"
SMOOTHED = ("CSS-IS, smoothed", "CSS-Bernoulli, smoothed")


@dataclasses.dataclass(frozen=True)
class Figure2a(softmax_regression.Regression):
    """Trains a softmax regression by ten methods; prints a table, writes results.json and a picture."""

    num_classes: common.Count = 1000
    """Number of classes, C."""
    shared: bool = False
    """One candidate set per batch instead of one per example."""
    rates: tuple[common.Positive, ...] = (0.001, 0.00316, 0.01, 0.0316, 0.1, 0.316, 1.0)
    """Learning rates to choose from."""

    QUICK: ClassVar = {**softmax_regression.Regression.QUICK, "num_classes": 150, "rates": (0.001, 0.01, 0.1)}

    def check(self) -> None:
        """See ``Settings``; the margin of ranking is log(C - 1)."""
        super().check()
        self.expect(self.num_classes >= 3, "--num-classes of 3 or more", "num_classes")
        self.expect(bool(self.rates), "one rate or more", "rates")


def methods(problem: Problem, num_groups: int | None) -> tuple[dict[str, Method], float]:
    """The methods by name, and the expected number of Bernoulli samples: the sum of f^0.54 over the classes."""
    expected = float(jnp.sum((problem.counts / jnp.sum(problem.counts)) ** POWER))
    unigram = functools.partial(samplers.unigram, NUM_SAMPLED, power=1.0, num_groups=num_groups)
    bernoulli = functools.partial(samplers.bernoulli, power=POWER, num_groups=num_groups)
    by_frequency = unigram()
    found = {
        "exact": EXACT,
        "CSS-IS": Method(by_frequency, losses.css),
        "CSS-Bernoulli": Method(bernoulli(num_slots=math.ceil(expected + 6 * math.sqrt(expected)) + 8), losses.css),
        "BlackOut": Method(by_frequency, losses.blackout),
        "ranking": Method(by_frequency, functools.partial(losses.ranking, reduction="mean")),
        "standard IS": Method(by_frequency, losses.importance_sampling),
        "NCE": Method(by_frequency, losses.nce),
        "negative sampling": Method(by_frequency, functools.partial(losses.negative_sampling, reduction="mean")),
        "CSS-IS, smoothed": Method(unigram(smoothing=1.0), losses.css),
        "CSS-Bernoulli, smoothed": Method(bernoulli(expected, smoothing=1.0), losses.css),
    }
    return found, expected


COLUMNS = common.columns(
    method="", learning_rate="g", final=".4f", best_final_of_all_rates=".4f", passes_true_model="", mass_on_unseen=".4f"
)


@common.command
def figure2a(settings: Figure2a) -> common.Study:
    """Runs the study; a row for each curve."""
    key_data, key_train, key_fresh = jax.random.split(jax.random.key(settings.seed), 3)
    sizes = {name: getattr(settings, name) for name in ("num_classes", "num_points", "dim")}
    problem = softmax_regression.draw_problem(key_data, **sizes)
    fresh = jax.random.normal(key_fresh, problem.inputs.shape)
    found, expected = methods(problem, 1 if settings.shared else None)
    truth, unseen = float(problem.true_log_likelihood), problem.counts == 0

    @functools.cache
    def curves(name: str, rates: tuple[float, ...] = settings.rates) -> Curves:
        options: dict[str, Any] = {"iterations": settings.iterations, "batch_size": settings.batch_size}
        return softmax_regression.train(problem, found[name], rates, key=key_train, **options)

    def run(name: str, folder: Path | None) -> dict[str, Any]:
        """With the rate that the docstring of the module says."""
        if name in OTHERS:
            return figures(curves(name), softmax_regression.largest_converging(curves(name)))
        if name in LEFT_OUT:
            return figures(curves(name), softmax_regression.best_at_end(curves(name)))
        index = softmax_regression.best_at_end(*map(curves, LIKELIHOOD))
        if name in SMOOTHED:
            return figures(curves(name, (settings.rates[index],)), 0)
        return figures(curves("standard IS" if name == IS_AT_CSS_RATE else name), index)

    def figures(curves: Curves, index: int) -> dict[str, Any]:
        shown, curve, vectors = curves.figures(index), curves.log_likelihood[index], curves.vectors[index]
        beyond = np.flatnonzero(curve > truth)
        lengths = jnp.where(unseen, jnp.linalg.norm(vectors, axis=1), 0)
        probabilities = jax.nn.softmax(fresh @ vectors.T)
        return {
            **shown,
            "best": float(np.nanmax(curve)),
            "best_final_of_all_rates": float(np.nanmax(curves.log_likelihood[:, -1])),
            "passes_true_model": int(shown["curve"]["iteration"][beyond[0]]) if beyond.size else None,
            "length_of_unseen_vectors": float(jnp.sum(lengths)) / max(int(jnp.sum(unseen)), 1),
            "mass_on_unseen": float(jnp.mean(jnp.sum(jnp.where(unseen, probabilities, 0), axis=1))),
            "fall_by_rate": curves.fall(),
            "curve": {**shown["curve"], "minus": -curve},
        }

    def panel(sign: int, names: tuple[str, ...], title: str, finding: str) -> common.Panel:
        axes: dict[str, Any] = {"ylim": (-11, 0.2)} if sign > 0 else {"y": "minus", "ylim": (5e-4, 100)}
        return softmax_regression.panel(
            title + here(settings, finding),
            lambda row: row["method"] in names,
            lambda rows: sign * truth,
            sign=sign,
            **axes,
        )

    shown, names = LIKELIHOOD + OTHERS, (*LIKELIHOOD, *OTHERS, *LEFT_OUT, IS_AT_CSS_RATE, *SMOOTHED)
    left_out = (*LEFT_OUT, IS_AT_CSS_RATE, "CSS-IS")
    return common.Study(
        f"exact mean log-likelihood per point, {settings.num_classes:,} classes",
        [common.Method({"method": name}, functools.partial(run, name)) for name in names],
        COLUMNS,
        [
            panel(1, shown, "paper: all work well, CSS-IS and CSS-Bernoulli alike", "so it is"),
            panel(-1, shown + SMOOTHED, "to the end", "BlackOut and ranking pay for the largest rate"),
            panel(1, left_out, "paper: significantly worse", "IS with a rate of its own is slower"),
        ],
        caption=f"true model {truth:.3f}; {int(jnp.sum(unseen))} classes never seen; f^{POWER} sums to {expected:.2f}",
        reference="exact",
    )
