"""Complementary Sum Sampling, figure 2b: ranking with different margins, where it helps and where it harms.

    candax experiment css-figure2b        (about 3.5 minutes of one core)

Setting: softmax regression as in figure 2a with N = 2000 points, batches of 50, momentum .99; the ranking loss with 20
uniform samples per example (their mean: the paper's sum with a 20th of the learning rate), one learning rate for all
margins (results.json has two more). The caption's log(C - 1) = 6.2126 is log 499, so its C is 500; C = 1000 of figure
2a is run as well. Margins 0, 2, 4, log(C - 1), 9, 12. Then the same on a control with D = 3, whose points no model can
separate, and there also CSS-IS with 1, 5, 20, 100 uniform samples and all classes. Learning rates in the control fall
to 0 over the second half.

Expected exact log-likelihoods per point at the end with seed 0, within 20 %, by rising margin:

* D = 100, C = 500: -1.07, -.23, -.066, -.028, -.017, -.014; C = 1000: -1.51, -.32, -.072, -.018, -.010, -.006. The
  paper calls log(C - 1) a reasonable setting, and it is, but larger ones end higher. These points can be separated, so
  that the likelihood grows with the scale of the logits, and a margin is a way to ask for scale.
* Control, C = 500: -4.70, -5.5, -7.1, -9.2, -11.8, -14.5: the order is reversed. log(C - 1) is then worse than the
  uniform distribution (-6.21): where the classes overlap, a margin asks for more than the data hold. Know this
  before using it: the gain above comes from training points that can be told apart.
* Control, CSS-IS: -9.5, -6.8, -5.0, -4.61 with 1, 5, 20, 100 samples, -4.57 with all classes, at mean entropies of 1.3,
  1.9, 3.1, 4.2 and 4.6 nats. The log of an estimated sum is too low on average, the more so the fewer the samples:
  small S makes the model too sharp. Ranking with margin log(C - 1) is CSS with S = 1, and ends like it.

Source: Botev, Zheng and Barber, Complementary Sum Sampling for Likelihood Approximation in Large Scale Classification
(2017), sections 5.3 and 6.1, figure 2b.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from candax import losses, samplers
from candax.experiments import softmax_regression
from candax.experiments.softmax_regression import EXACT, NUM_SAMPLED, Method, Problem, Regression, as_by_default, here
from candax.recipes import common

_CONTROL = "control"
_SAMPLES = "control, samples"
# What a panel shows, and what came out.
_SHOWN = {
    _CONTROL: (f"ranking with {NUM_SAMPLED} uniform samples", "the order is reversed"),
    _SAMPLES: ("CSS-IS with S uniform samples", "with few the model becomes too sharp"),
}
# Settings on which it does not depend whether points can be separated.
_NO_SIZES = ("seed", "batch_size", "iterations", "margins", "css_samples", "rates", "control_rates")
uniform = functools.partial(samplers.uniform, num_groups=None)


@dataclasses.dataclass(frozen=True)
class Figure2b(Regression):
    """Trains by ranking with several margins; prints a table, writes results.json and a picture."""

    num_classes: tuple[common.Count, ...] = (500, 1000)
    """Number of classes, C, of each separable problem; the control has the first number."""
    control_dim: common.Count = 3
    """Coordinates of an input, D, in the control: so few that its points cannot be separated."""
    margins: tuple[float, ...] = (0.0, 2.0, 4.0, 9.0, 12.0)
    """Margins of the ranking loss, in addition to log(C - 1)."""
    css_samples: tuple[common.Count, ...] = (1, 5, 20, 100)
    """Numbers of samples, S, of CSS-IS in the control, in addition to all classes."""
    rates: tuple[common.Positive, ...] = (0.004, 0.016, 0.064)
    """Learning rates; the curves show the second."""
    control_rates: tuple[common.Positive, ...] = (0.05, 0.1, 0.2)
    """Learning rates in the control; the curves show the second."""

    QUICK: ClassVar = {**Regression.QUICK, "num_classes": (100,), "margins": (0.0, 2.0), "css_samples": (1, 20)}

    def check(self) -> None:
        """See ``Settings``; log(C - 1) is a margin, and curves show the second rate."""
        super().check()
        enough = min(self.num_classes, default=0) >= 3
        self.expect(enough, "--num-classes of 3 or more", "num_classes")
        self.expect(min(len(self.rates), len(self.control_rates)) >= 2, "two rates or more", "rates", "control_rates")


COLUMNS = common.columns(panel="", method="", final=".3f", entropy=".3f", true_model=".3f")


@common.command
def figure2b(settings: Figure2b) -> common.Study:
    """Runs the study; a row for each curve."""
    key_train, key_control, *keys = jax.random.split(jax.random.key(settings.seed), 2 + len(settings.num_classes))
    names = [f"C = {number}" for number in settings.num_classes]

    @functools.cache
    def problem(panel: str) -> Problem:
        control = panel.startswith(_CONTROL)
        number = 0 if control else names.index(panel)
        return softmax_regression.draw_problem(
            key_control if control else keys[number],
            num_classes=settings.num_classes[number],
            num_points=settings.num_points,
            dim=settings.control_dim if control else settings.dim,
        )

    def figures(panel: str, method: Method, folder: Path | None) -> dict[str, Any]:
        control = panel.startswith(_CONTROL)
        curves = softmax_regression.train(
            problem(panel),
            method,
            settings.control_rates if control else settings.rates,
            key=key_train,
            iterations=settings.iterations * (2 if control else 1),
            batch_size=settings.batch_size,
            decay=control,
        )
        found, log_p = curves.figures(1), jax.nn.log_softmax(problem(panel).inputs @ curves.vectors[1].T)
        if not control:  # shown on a log scale, which needs positive numbers
            found["curve"]["minus"] = -found["curve"]["log_likelihood"]
        entropy = float(-jnp.mean(jnp.sum(jnp.exp(log_p) * log_p, axis=1)))
        return {**found, "entropy": entropy, "true_model": float(problem(panel).true_log_likelihood)}

    plans = [(name, _margins(settings, number)) for name, number in zip(names, settings.num_classes, strict=True)]
    plans.append((_CONTROL, _margins(settings, settings.num_classes[0])))
    by_samples = {f"CSS with S = {s}": Method(uniform(s), losses.css) for s in settings.css_samples}
    plans.append((_SAMPLES, {**by_samples, "all classes": EXACT}))
    return common.Study(
        "exact mean log-likelihood per point, in nats",
        [
            common.Method({"panel": panel, "method": name}, functools.partial(figures, panel, method))
            for panel, methods in plans
            for name, method in methods.items()
        ],
        COLUMNS,
        [_panel(panel, settings) for panel, _ in plans],
        reference="all classes",
    )


def _margins(settings: Figure2b, num_classes: int) -> dict[str, Method]:
    """Ranking against 20 uniform samples per example, by rising margin."""
    default = math.log(num_classes - 1)
    names = {margin: f"margin {margin:g}" for margin in settings.margins}
    names[default] = f"margin log(C - 1) = {default:.4f}"
    by = {margin: functools.partial(losses.ranking, reduction="mean", margin=margin) for margin in sorted(names)}
    return {names[margin]: Method(uniform(NUM_SAMPLED), loss) for margin, loss in by.items()}


def _panel(panel: str, settings: Figure2b) -> common.Panel:
    control = panel.startswith(_CONTROL)
    title = f"control, D = {settings.control_dim}" if control else f"{panel}, D = {settings.dim}"
    # Of other sizes it is not known.
    if as_by_default(settings, *_NO_SIZES):
        title += ": not separable" if control else ": separable"
    shown, finding = _SHOWN.get(panel, ("paper: log(C - 1) is reasonable", "it is, and more is better"))
    sign = 2 * control - 1

    def true_model(rows: Any) -> float:
        return sign * next(row["true_model"] for row in rows if row["panel"] == panel)

    axes: dict[str, Any] = {} if control else {"y": "minus", "ylim": (None, 200)}
    return softmax_regression.panel(
        f"{title}\n{shown}{here(settings, finding)}",
        lambda row: row["panel"] == panel,
        true_model,
        sign=sign,
        **axes,
    )
