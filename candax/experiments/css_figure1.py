"""Complementary Sum Sampling, figure 1: estimating p(1|x) when the true class is summed exactly, and when it is not.

    candax experiment css-figure1        (about 20 seconds on 2 cores)

Setting: C = 10,000 classes, u(i) uniform on [0, 1] for i > 1, p(1|x) = u(1) / sum_i u(i), uniform samples, S = 10, 20,
50. The paper says u(1) = exp(C y) with y normal, but then almost every p is 0 or 1: C exp(y) is used here.

Expected root mean square errors of the estimate of p at S = 10, 20, 50:

* standard importance sampling: more than 50 times those of CSS-IS, and different by seed (heavy tails);
* CSS-IS about .038, .026, .016;
* CSS-Bernoulli about .078, .052, .033. The paper finds no significant difference between the two. For uniform u
  there is one, a factor sqrt(E[u^2] / Var u) = 2: the number of included classes varies, and with it the estimate.

Source: Botev, Zheng and Barber, Complementary Sum Sampling for Likelihood Approximation in Large Scale Classification
(2017), section 4.1 and figure 1.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import candax as cx
from candax import losses, samplers
from candax.base import Classes, Sampler
from candax.experiments.softmax_regression import as_by_default, here
from candax.recipes import common

SAMPLES = (10, 20, 50)
EXPECTED = {"CSS-IS": (0.038, 0.026, 0.016), "CSS-Bernoulli": (0.078, 0.052, 0.033)}
_CLAIMS = {
    "standard IS": "paper: wildly inaccurate",
    "CSS-IS": "paper: accurate",
    "CSS-Bernoulli": "paper: like CSS-IS",
}
_FINDINGS = {"CSS-Bernoulli": "twice its error"}
# Settings on which neither these nor the expected errors depend.
_FREE = ("num_problems", "seed")
_BATCH = 200
# How many problems the picture shows.
_SHOWN = 500


@dataclasses.dataclass(frozen=True)
class Figure1(common.Settings):
    """Estimates p(1|x) by three methods; prints their errors, writes results.json and a picture."""

    num_classes: common.Count = 10_000
    """Number of classes, C."""
    num_problems: common.Count = 2000
    """Number of random vectors u whose p is estimated."""

    QUICK: ClassVar = {"num_problems": 200}

    def check(self) -> None:
        """See ``Settings``; problems come in batches."""
        super().check()
        self.expect(self.num_classes >= 2, "--num-classes of 2 or more", "num_classes")
        whole = self.num_problems % _BATCH == 0
        self.expect(whole, f"--num-problems of {_BATCH} or a multiple of it", "num_problems")


_SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "standard IS": functools.partial(samplers.uniform, num_groups=None),
    "CSS-IS": functools.partial(samplers.uniform, num_groups=None),
    "CSS-Bernoulli": lambda number: samplers.bernoulli(float(number), power=1.0, num_groups=None),
}
COLUMNS = common.columns(
    method="", num_sampled="", root_mean_square_error=".3f", expected="", bias="+.4f", largest_error=".2f"
)


@common.command
def figure1(settings: Figure1) -> common.Study:
    """Runs the study; a row for each method and number of samples."""
    return common.Study(
        f"error of the estimate of p(1|x), {settings.num_classes:,} classes",
        [
            common.Method({"method": name, "num_sampled": number}, functools.partial(_measure, settings, name, number))
            for number in SAMPLES
            for name in _CLAIMS
        ],
        COLUMNS,
        [
            _panel(name, claim + (here(settings, _FINDINGS[name], *_FREE) if name in _FINDINGS else ""))
            for name, claim in _CLAIMS.items()
        ],
    )


def _measure(settings: Figure1, name: str, num_sampled: int, folder: Path | None) -> dict[str, Any]:
    number = settings.num_classes
    sampler, loss = _SAMPLERS[name](num_sampled), losses.importance_sampling if name == "standard IS" else losses.css
    labels, counts = jnp.zeros((_BATCH, 1), jnp.int32), jnp.ones(number)
    state = sampler.init(jax.random.key(0), Classes(jnp.zeros((number, 1)), None, counts))

    @jax.jit
    def exact_and_estimated(key_u: jax.Array, key_draw: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_others, key_first = jax.random.split(key_u)
        others = jax.random.uniform(key_others, (_BATCH, number), minval=1e-12)
        u = others.at[:, 0].set(number * jnp.exp(jax.random.normal(key_first, (_BATCH,))))
        # For the i-th unit vector as input, the logits are those of the i-th problem.
        classes = Classes(jnp.log(u).T, None, counts)
        by = {"sampler": sampler, "state": state, "key": key_draw, "loss": loss}
        estimated = -cx.sampled_loss(jnp.eye(_BATCH), labels, classes, **by, reduction="none")
        return u[:, 0] / u.sum(1), jnp.exp(estimated)

    key = jax.random.key(settings.seed)
    # The same problems for every method.
    keys = [jax.random.split(jax.random.fold_in(key, part)) for part in range(settings.num_problems // _BATCH)]
    parts = [np.asarray(exact_and_estimated(*pair), np.float64) for pair in keys]
    exact, estimated = np.concatenate(parts, axis=1)
    errors = estimated - exact
    expected = EXPECTED[name][SAMPLES.index(num_sampled)] if name in EXPECTED else "more than 50 times CSS-IS"
    return {
        "root_mean_square_error": float(np.sqrt(np.mean(errors**2))),
        "bias": float(np.mean(errors)),
        "largest_error": float(np.abs(errors).max()),
        "expected": expected if as_by_default(settings, *_FREE) else None,
        "curve": {"exact": exact[:_SHOWN], "estimate": estimated[:_SHOWN]},
    }


def _panel(name: str, claim: str) -> common.Panel:
    points = common.curves(
        "exact",
        "estimate",
        label=lambda row: f"S = {row['num_sampled']}",
        where=lambda row: row["method"] == name,
        marker=".",
        linestyle="",
    )

    def diagonal(rows: Sequence[common.Row]) -> list[common.Line]:
        # On a log scale it is curved.
        ends = np.linspace(0.05, 1, 100)
        return [common.Line("exact", ends, ends, {"color": "black"})]

    axes = {"title": f"{name}\n{claim}", "xlabel": "exact p(1|x)", "ylabel": f"estimate by {name}"}
    return common.Panel((points, diagonal), {**axes, "yscale": "log" if name == "standard IS" else "linear"})
