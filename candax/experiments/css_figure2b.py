"""Complementary Sum Sampling, figure 2b: ranking with different margins, where it helps and where it harms.

    candax experiment css-figure2b        (about 3.5 minutes of one core)

Setting: softmax regression as in figure 2a with N = 2000 points, batches of 50, momentum .99; the ranking loss with 20
uniform samples an example (their mean: the paper's sum with a 20th of the learning rate), one learning rate for all
margins (results.json has two more). The caption's log(C - 1) = 6.2126 is log 499, so its C is 500; C = 1000 of figure
2a is run as well. Margins 0, 2, 4, log(C - 1), 9, 12. Then the same on a control with D = 3, whose points no model can
separate, and there also CSS-IS with 1, 5, 20, 100 uniform samples and all classes. Learning rates in the control fall
to 0 over the second half.

Expected exact log-likelihoods a point at the end with seed 0, within 20 %, by rising margin:

* D = 100, C = 500: -1.07, -.23, -.066, -.028, -.017, -.014; C = 1000: -1.51, -.32, -.072, -.018, -.010, -.006. The
  paper calls log(C - 1) a reasonable setting, and it is, but larger ones end higher. These points can be separated, so
  that the likelihood grows with the scale of the logits, and a margin is a way to ask for scale.
* Control, C = 500: -4.70, -5.5, -7.1, -9.2, -11.8, -14.5: the order is reversed. log(C - 1) is then worse than the
  uniform distribution (-6.21): where the classes overlap, a margin asks for more than the data hold. What to know
  before using it: the gain above is that of training points that can be told apart.
* Control, CSS-IS: -9.5, -6.9, -5.1, -4.60 with 1, 5, 20, 100 samples, -4.57 with all classes, at mean entropies of 1.3,
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
from candax.experiments.softmax_regression import EXACT, Method, Problem, Regression, draw_problem, train
from candax.recipes import common

NUM_SAMPLED = 20
_CONTROL = "control"
_SAMPLES = "control, samples"


@dataclasses.dataclass(frozen=True)
class Figure2b(Regression):
    """Trains by ranking with several margins; prints a table, writes results.json and a picture."""

    num_classes: tuple[common.Count, ...] = (500, 1000)
    """C of each separable problem; the control has the first."""
    control_dim: common.Count = 3
    """D of the control, few enough that its points cannot be separated."""
    margins: tuple[float, ...] = (0.0, 2.0, 4.0, 9.0, 12.0)
    """Margins of ranking, beside log(C - 1)."""
    css_samples: tuple[common.Count, ...] = (1, 5, 20, 100)
    """S of CSS-IS in the control, beside all classes."""
    rates: tuple[common.Positive, ...] = (0.004, 0.016, 0.064)
    """Learning rates; the curves are of the second."""
    control_rates: tuple[common.Positive, ...] = (0.05, 0.1, 0.2)
    """The same in the control."""

    QUICK: ClassVar = {**Regression.QUICK, "num_classes": (100,), "margins": (0.0, 2.0), "css_samples": (1, 20)}

    def check(self) -> None:
        """log(C - 1) is a margin; curves are of the second rate."""
        super().check()
        enough = min(self.num_classes, default=0) >= 3
        self.expect(enough, "--num-classes of 3 or more", "num_classes")
        self.expect(min(len(self.rates), len(self.control_rates)) >= 2, "two rates or more", "rates", "control_rates")


def ranking(margin: float | None) -> Method:
    """Ranking against 20 uniform samples per example; None is the margin log(C - 1)."""
    loss = functools.partial(losses.ranking, margin=margin, reduction="mean")
    return Method(samplers.uniform(NUM_SAMPLED, num_groups=None), loss)


def css(num_sampled: int) -> Method:
    """CSS-IS with uniform samples for each example."""
    return Method(samplers.uniform(num_sampled, num_groups=None), losses.css)


COLUMNS = common.columns(panel="", method="", final=".3f", entropy=".3f", true_model=".3f")


def figure2b(settings: Figure2b) -> list[common.Row]:
    """Runs the study; a row for each curve."""
    settings = settings.ready()
    key_train, key_control, *keys = jax.random.split(jax.random.key(settings.seed), 2 + len(settings.num_classes))
    first = settings.num_classes[0]

    @functools.cache
    def problem(panel: str) -> Problem:
        if panel.startswith(_CONTROL):
            size = {"num_classes": first, "dim": settings.control_dim}
            return draw_problem(key_control, num_points=settings.num_points, **size)
        number = int(panel.removeprefix("C = "))
        key = keys[settings.num_classes.index(number)]
        return draw_problem(key, num_classes=number, num_points=settings.num_points, dim=settings.dim)

    def method(panel: str, name: str, trained_by: Method) -> common.Method:
        def run(folder: Path | None) -> dict[str, Any]:
            return _figures(settings, key_train, problem(panel), trained_by, control=panel.startswith(_CONTROL))

        return common.Method({"panel": panel, "method": name}, run)

    sizes = {f"C = {number}": number for number in settings.num_classes} | {_CONTROL: first}
    plans = [(panel, _margins(settings, number)) for panel, number in sizes.items()]
    plans.append((_SAMPLES, {f"CSS with S = {s}": css(s) for s in settings.css_samples} | {"all classes": EXACT}))
    study = common.Study(
        "exact mean log-likelihood per point, in nats",
        [method(panel, name, by) for panel, methods in plans for name, by in methods.items()],
        COLUMNS,
        [_panel(panel, settings) for panel, _ in plans],
        reference="all classes",
    )
    return common.run(study, settings)


def _margins(settings: Figure2b, num_classes: int) -> dict[str, Method]:
    """By rising margin."""
    default = math.log(num_classes - 1)
    named: list[tuple[float, str, float | None]] = [
        (margin, f"margin {margin:g}", margin) for margin in settings.margins
    ]
    named.append((default, f"margin log(C - 1) = {default:.4f}", None))
    return {name: ranking(margin) for _, name, margin in sorted(named, key=lambda each: each[0])}


def _figures(settings: Figure2b, key: Any, problem: Problem, method: Method, *, control: bool) -> dict[str, Any]:
    curves = train(
        problem,
        method,
        settings.control_rates if control else settings.rates,
        key=key,
        iterations=settings.iterations * (2 if control else 1),
        batch_size=settings.batch_size,
        decay=control,
    )
    curve, vectors = curves.log_likelihood[1], curves.vectors[1]
    log_p = jax.nn.log_softmax(problem.inputs @ vectors.T)
    return {
        "learning_rate": float(curves.rates[1]),
        "final": float(curve[-1]),
        "entropy": float(-jnp.mean(jnp.sum(jnp.exp(log_p) * log_p, axis=1))),
        "true_model": float(problem.true_log_likelihood),
        "final_by_rate": curves.final_by_rate(),
        # Separable problems are shown on a log scale, which needs a sign.
        "curve": {"iteration": curves.iterations(), "log_likelihood": curve if control else -curve},
    }


def _panel(panel: str, settings: Figure2b) -> common.Panel:
    control = panel.startswith(_CONTROL)
    sign = 1 if control else -1
    here = {
        _CONTROL: f"ranking with {NUM_SAMPLED} uniform samples\nhere: the order is reversed",
        _SAMPLES: "CSS-IS with S uniform samples\nhere: with few the model becomes too sharp",
    }.get(panel, "paper: log(C - 1) is reasonable\nhere: it is, and more is better")
    title = f"control, D = {settings.control_dim}: not" if control else f"{panel}, D = {settings.dim}:"

    def true_model(rows: Any) -> float:
        return sign * next(row["true_model"] for row in rows if row["panel"] == panel)

    lines = common.curves("iteration", "log_likelihood", where=lambda row: row["panel"] == panel)
    ylabel = f"{'' if control else 'minus '}exact log-likelihood per point [nats]"
    axes = {"title": f"{title} separable\n{here}", "xlabel": "iteration", "ylabel": ylabel}
    scale = {"yscale": "linear"} if control else {"yscale": "log", "ylim": (None, 200)}
    return common.Panel((lines, common.level("true model", true_model)), {**axes, **scale})
