"""Complementary Sum Sampling, figure 1: estimating p(1|x) when the true class is summed exactly, and when it is not.

    python -m candax.experiments.css_figure1        (about 20 seconds on 2 cores)

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
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from candax import losses, samplers
from candax.base import Classes, Loss, Query, SampledLogits, Sampler
from candax.experiments import setup
from candax.models import find_hits
from candax.pictures import save_picture
from candax.training.metrics_log import write_atomically

SAMPLES = (10, 20, 50)
_BATCH = 200
EXPECTED = {"CSS-IS": (0.038, 0.026, 0.016), "CSS-Bernoulli": (0.078, 0.052, 0.033)}


@dataclasses.dataclass(frozen=True)
class Figure1:
    """Estimates p(1|x) by three methods; prints their errors, writes results.json and figure1.png."""

    num_classes: int = 10_000
    """C."""
    num_problems: int = 2000
    """Random u to estimate p of."""
    seed: int = 0
    """Of problems and samples."""
    out: setup.Out = Path("runs/css_figure1")
    """Folder for results.json and figure1.png."""


def _methods(num_sampled: int) -> dict[str, tuple[Sampler, Loss]]:
    return {
        "standard IS": (samplers.uniform(num_sampled, num_groups=None), losses.importance_sampling),
        "CSS-IS": (samplers.uniform(num_sampled, num_groups=None), losses.css),
        "CSS-Bernoulli": (
            samplers.bernoulli(float(num_sampled), power=1.0, num_groups=None),
            losses.css,
        ),
    }


def estimate(
    sampler: Sampler, loss: Loss, num_classes: int
) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """A function from keys to the exact p(1|x) of random problems and its estimates, exp(-loss)."""
    classes = Classes(jnp.zeros((num_classes, 1)), None, jnp.ones(num_classes), jnp.int32(num_classes))

    state = sampler.init(jax.random.key(0), classes)  # none of the three depends on the key

    @jax.jit
    def run(key_u: jax.Array, key_draw: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_others, key_first = jax.random.split(key_u)
        others = jax.random.uniform(key_others, (_BATCH, num_classes), minval=1e-12)
        u = others.at[:, 0].set(num_classes * jnp.exp(jax.random.normal(key_first, (_BATCH,))))
        labels = jnp.zeros((_BATCH, 1), jnp.int32)
        query = Query(jnp.zeros((_BATCH, 1)), labels, classes)
        candidates = sampler.sample(state, key_draw, query)
        logits = SampledLogits(
            true=jnp.log(u[:, :1]),
            true_log_expected_count=sampler.log_expected_count(state, candidates, labels, query),
            true_mask=jnp.ones((_BATCH, 1), bool),
            sampled=jnp.log(jnp.take_along_axis(u, candidates.ids, axis=1)),
            sampled_log_expected_count=candidates.log_expected_count,
            sampled_mask=candidates.mask,
            hits=find_hits(labels, candidates.ids),
            num_classes=num_classes,
        )
        return u[:, 0] / u.sum(1), jnp.exp(-loss(logits))

    return run


def figure1(settings: Figure1) -> list[dict[str, Any]]:
    """Runs the experiment and writes its files; returns one row a method and number of samples."""
    if settings.num_classes < 2 or settings.num_problems < _BATCH:
        raise ValueError(
            f"expected --num-classes of 2 and --num-problems of {_BATCH} or more, got {settings.num_classes} and "
            f"{settings.num_problems}."
        )
    out = setup.writable_folder(settings.out)
    key = jax.random.key(settings.seed)
    rows, points = [], {}
    for num_sampled in SAMPLES:
        for name, (sampler, loss) in _methods(num_sampled).items():
            run = estimate(sampler, loss, settings.num_classes)
            parts = []
            for part in range(settings.num_problems // _BATCH):
                # The same problems for every method.
                keys = jax.random.split(jax.random.fold_in(key, part))
                parts.append(run(*keys))
            exact, estimated = (np.concatenate([np.asarray(p[i], np.float64) for p in parts]) for i in (0, 1))
            errors = estimated - exact
            rows.append(
                {
                    "method": name,
                    "num_sampled": num_sampled,
                    "root_mean_square_error": float(np.sqrt(np.mean(errors**2))),
                    "bias": float(np.mean(errors)),
                    "largest_error": float(np.abs(errors).max()),
                    "expected": dict(zip(SAMPLES, EXPECTED[name], strict=True))[num_sampled]
                    if name in EXPECTED
                    else "more than 50 times CSS-IS",
                }
            )
            points[name, num_sampled] = exact, estimated
    Console().print(_table(rows))
    write_atomically(out / "results.json", json.dumps(rows, indent=1) + "\n")
    _draw(points, out / "figure1.png")
    return rows


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="error of the estimate of p(1|x)")
    for column in ("method", "S", "root mean square", "expected", "bias", "largest"):
        table.add_column(column)
    for row in rows:
        table.add_row(
            row["method"],
            str(row["num_sampled"]),
            f"{row['root_mean_square_error']:.3f}",
            str(row["expected"]),
            f"{row['bias']:+.4f}",
            f"{row['largest_error']:.2f}",
        )
    return table


def _draw(points: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    claims = {
        "standard IS": "paper: wildly inaccurate",
        "CSS-IS": "paper: accurate",
        "CSS-Bernoulli": "paper: like CSS-IS; here: twice its error",
    }
    with save_picture(path, columns=3, size=(13, 4.5), share_y=False) as axes:
        for axis, (name, claim) in zip(axes, claims.items(), strict=True):
            for num_sampled in SAMPLES:
                exact, estimated = points[name, num_sampled]
                axis.scatter(exact, estimated, s=4, alpha=0.5, label=f"S = {num_sampled}")
            diagonal = np.linspace(0.05, 1)
            axis.plot(diagonal, diagonal, color="black", linewidth=1)
            axis.set(title=f"{name}\n{claim}", xlabel="exact p(1|x)", ylabel="estimate")
            if name == "standard IS":
                axis.set_yscale("log")
            axis.legend(markerscale=3)


if __name__ == "__main__":
    figure1(tyro.cli(Figure1))
