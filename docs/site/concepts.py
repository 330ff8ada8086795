"""Pictures of docs/concepts.md, computed with the library they explain.

python docs/site/concepts.py        (writes docs/concepts_*.svg; half a minute)
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pictures import OUT, number, table

import candax as cx
from candax.pictures import PALETTE, label_ends, save_picture

NUM, DRAWS = 40, 4000


def _problem() -> tuple[cx.Classes, Any, Any]:
    """Some classes, the first of which are frequent and likely, and an embedding."""
    vectors = jax.random.normal(jax.random.key(0), (NUM, 8))
    classes = cx.Classes(vectors, 2 - 0.9 * jnp.log(jnp.arange(NUM) + 1.0))
    h = 0.4 * jax.random.normal(jax.random.key(1), (1, 8))
    return classes, h, (h @ vectors.T + classes.biases)[0]


def _drawn(sampler: cx.Sampler, classes: cx.Classes, h: Any, draws: int = DRAWS) -> cx.Candidates:
    query = cx.Query(h, jnp.array([[0]]), classes)
    state = sampler.init(jax.random.key(2), classes)
    return jax.jit(jax.vmap(lambda key: sampler.sample(state, key, query)))(jax.random.split(jax.random.key(3), draws))


def candidates() -> None:
    """What one draw proposes, and how often each class is proposed in the mean: its expected count."""
    classes, h, _ = _problem()
    drawn = _drawn(cx.samplers.log_uniform(8, ids_ranked=True), classes, h)
    ids, counts = np.asarray(drawn.ids[:, 0]), np.asarray(drawn.log_expected_count[:, 0])
    stated = np.full(NUM, np.nan)
    stated[ids.ravel()] = np.exp(counts.ravel())
    with save_picture(OUT / "concepts_candidates.svg", columns=1, size=(7, 3), share_y=False) as (axis,):
        axis.bar(
            np.arange(NUM),
            np.bincount(ids.ravel(), minlength=NUM) / DRAWS,
            color=PALETTE[4],
            label="times in a set, mean of 4,000 draws",
        )
        axis.plot(stated, "o-", color=PALETTE[0], markersize=4, label="expected count K(c), as the sampler states it")
        times = np.bincount(ids[0], minlength=NUM)
        for high in range(1, times.max() + 1):
            where = np.flatnonzero(times >= high)
            label = {"label": "one draw of 8 candidates"} if high == 1 else {}
            axis.plot(
                where, np.full(len(where), -0.07 - 0.1 * (high - 1)), "s", color=PALETTE[1], markersize=6, **label
            )
        axis.axhline(0, color="black", linewidth=1)
        axis.set(
            xlabel="class, the most frequent first",
            ylabel="times per draw",
            ylim=(-0.15 - 0.1 * (times.max() - 1), None),
        )
        axis.legend(fontsize="small")


def correction() -> None:
    """The sum over all classes, estimated with and without dividing by expected counts."""
    classes, h, logits = _problem()
    exact = float(jnp.exp(logits).sum())
    with save_picture(OUT / "concepts_correction.svg", columns=1, size=(7, 3), share_y=False) as (axis,):
        drawn = _drawn(cx.samplers.log_uniform(8, ids_ranked=True), classes, h)
        terms = np.exp(np.asarray(logits)[np.asarray(drawn.ids[:, 0])])
        for label, sums, color in (
            (
                "sum of exp(o(c)) / K(c)",
                (terms * np.exp(-np.asarray(drawn.log_expected_count[:, 0]))).sum(1),
                PALETTE[0],
            ),
            ("sum of exp(o(c)), uncorrected", terms.sum(1), PALETTE[1]),
        ):
            axis.hist(sums / exact, bins=np.linspace(0, 3.2, 65), color=color, alpha=0.55, label=label)
            axis.axvline(sums.mean() / exact, color=color, linestyle="--", label=f"its mean: {sums.mean() / exact:.2f}")
        axis.axvline(1, color="black", label="the sum over all classes")
        axis.set(xlabel="estimate / sum over all classes", ylabel="draws of 8 candidates")
        axis.legend(fontsize="small")


def hits() -> None:
    """Which candidates of a shared set are a label of which example."""
    classes, h, _ = _problem()
    labels = np.array([0, 1, 15, 4, 7, 38])
    drawn = np.asarray(_drawn(cx.samplers.log_uniform(16, ids_ranked=True), classes, h, 1).ids[0, 0])
    hit = drawn[None] == labels[:, None]
    with save_picture(OUT / "concepts_hits.svg", columns=1, size=(7, 2.7), share_y=False) as (axis,):
        axis.grid(visible=False)
        for row, label in enumerate(labels):
            for column, candidate in enumerate(drawn):
                color = PALETTE[1] if hit[row, column] else "#DCE9F2"
                axis.add_patch(_box(column - 0.45, row - 0.42, color))
                weight = {"color": "white", "weight": "bold"} if hit[row, column] else {"color": "#333333"}
                axis.text(column, row, candidate, ha="center", va="center", fontsize="small", **weight)
            axis.text(-1.1, row, f"label {label}", ha="right", va="center", fontsize="small")
        axis.set(xlim=(-2.6, len(drawn)), ylim=(len(labels) - 0.4, -0.6), xticks=[], yticks=[])
        axis.set_xlabel("the batch's 16 candidates; orange: a hit, masked for that example only")
        axis.spines[:].set_visible(False)


def _box(x: float, y: float, color: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 0.9, 0.84, color=color)


def bias_and_variance() -> None:
    """Estimates of log Z against the number of candidates, by two samplers."""
    classes, h, logits = _problem()
    exact, sizes = float(jax.nn.logsumexp(logits)), [2, 4, 8, 16, 32, 64]
    makers = {
        "uniform": cx.samplers.uniform,
        "log_uniform": lambda size: cx.samplers.log_uniform(size, ids_ranked=True),
    }
    with save_picture(OUT / "concepts_bias.svg", columns=2, size=(9, 3.2), share_y=True) as axes:
        for axis, (name, color) in zip(axes, (("uniform", PALETTE[1]), ("log_uniform", PALETTE[0])), strict=True):
            spread = []
            for size in sizes:
                drawn = _drawn(makers[name](size), classes, h)
                terms = logits[drawn.ids[:, 0]] - drawn.log_expected_count[:, 0]
                logs = np.asarray(jax.nn.logsumexp(terms, axis=1)) - exact
                spread.append([*np.quantile(logs, [0.1, 0.9]), logs.mean()])
            low, high, mean = np.array(spread).T
            axis.fill_between(sizes, low, high, color=color, alpha=0.25, linewidth=0)
            axis.plot(sizes, mean, "o-", color=color)
            axis.text(sizes[1], high[1] + 0.05, "80 % of the draws", color=color, fontsize="small")
            axis.text(sizes[2], mean[2] - 0.35, "mean: the bias", color=color, fontsize="small")
            axis.axhline(0, color="black", linewidth=1)
            axis.set(xscale="log", title=name, xlabel="candidates", xticks=sizes)
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.minorticks_off()
        axes[0].set_ylabel("estimate of log Z, minus log Z (nats)")


def rows() -> None:
    """Which rows a step writes, and what it costs by the table of benchmarks."""
    costs = table("benchmarks.md", "step", "classes", "ms")
    with save_picture(OUT / "concepts_rows.svg", columns=2, size=(9, 3.2), share_y=False) as (picture, axis):
        touched = np.zeros((40, 21))
        touched[:, :10] = 1
        touched[[2, 3, 9, 17, 30], 11:] = 1
        touched[:, 10] = np.nan
        from matplotlib.colors import ListedColormap

        picture.imshow(touched, aspect="auto", cmap=ListedColormap(["#DCE9F2", PALETTE[1]]))
        picture.set(
            xticks=[4.5, 15.5], yticks=[], ylabel="classes", title="rows of the table that a step writes (orange)"
        )
        picture.set_xticklabels(["dense gradient", "gradient of rows"])
        picture.grid(visible=False)
        for name, prefix, color in (
            ("candax", "layer 2", PALETTE[0]),
            ("dense gradient", "dense", PALETTE[1]),
            ("full softmax", "full, plain", "black"),
        ):
            found = sorted(
                (number(row["classes"])[0], number(row["ms"])[0]) for row in costs if row["step"].startswith(prefix)
            )
            axis.plot(*np.array(found).T, "o-", color=color, label=name)
        axis.set(xscale="log", yscale="log", xlabel="classes", ylabel="milliseconds per step", ylim=(5, 6000))
        label_ends(axis, gap=0.08)


PICTURES = (candidates, correction, hits, bias_and_variance, rows)


if __name__ == "__main__":
    for draw in PICTURES:
        draw()
