"""Advice: which sampler, number of candidates, loss and optimizer, from label counts and step times on this machine."""

import dataclasses
import os
from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import Array, Num
from rich.table import Table

from candax.checks import check_positive, checked
from candax.diagnostics.step_times import StepTimes, time_steps

# Bytes of a float32, and how many there are: the value and both moments of Adam.
_BYTES, _COPIES = 4, 3
# Costs within this factor of each other count as equal: times on a shared machine vary as much.
_UNSURE = 1.5
# Of the frequency model: the share of the mass on one class. With it the advice is near what docs/race.md found best.
_ON_ONE = 0.2
_SHOWN = 14
# Chances are cut here: log(1 - p) is -inf for p = 1.
_SURE = 1 - 1e-12
# The rest of the model is taken to last as long as an output layer with so many candidates, unless told.
_REST = 1024


@dataclasses.dataclass(frozen=True)
class Option:
    """One way to train the output layer.

    Attributes:
        sampler: its name in ``candax.samplers``, or "full_softmax".
        num_sampled: S; all classes for the full softmax.
        milliseconds: of a step of the output layer on this machine.
        found: the chance that the label of an example, drawn by frequency, is among S candidates.
        hits: how many of the candidates are an example's labels, on average.
        variance: of an estimate of the softmax normaliser, relative to the normaliser squared, under the model of
            ``advise``; NaN where it depends on the class vectors.
        cost: milliseconds, with those of the rest of the model, times (1 + variance)^2.
    """

    sampler: str
    num_sampled: int
    milliseconds: float
    found: float
    hits: float
    variance: float
    cost: float


@dataclasses.dataclass(frozen=True)
class Advice:
    """What ``advise`` found.

    Attributes:
        options: all that were weighed, the best of each sampler first.
        sampler: the name of the one to take, or "full_softmax" if none is to be used.
        num_sampled: S.
        loss: its name.
        optimizer: of the class vectors: "lazy", "exact" or "dense".
        num_groups: candidate sets per batch.
        num_devices: over which to divide the classes.
        table_bytes: of class vectors, biases and Adam's moments.
        reasons: why, for each choice by name.
        unsure: what the advice cannot know, and how to find out.
        snippet: code to paste.
    """

    options: tuple[Option, ...]
    sampler: str
    num_sampled: int
    loss: str
    optimizer: str
    num_groups: int
    num_devices: int
    table_bytes: int
    reasons: Mapping[str, str]
    unsure: tuple[str, ...]
    snippet: str

    def table(self) -> Table:
        """The best options, to print."""
        table = Table(title="What was weighed: milliseconds, and cost = (ms + rest) (1 + variance)^2")
        for name in ("sampler", "S", "ms", "label in S", "hits", "variance", "cost"):
            table.add_column(name, no_wrap=True, justify="left" if name == "sampler" else "right")
        for option in self.options[:_SHOWN]:
            of_s = (option.milliseconds, option.found, option.hits, option.variance, option.cost)
            numbers = ("?" if np.isnan(x) else f"{x:.3g}" for x in of_s)
            table.add_row(option.sampler, f"{option.num_sampled:,}", *numbers)
        return table


@checked
def advise(
    counts: Num[Array | np.ndarray, " num_classes"],
    *,
    dim: int,
    batch_size: int,
    labels_per_example: float = 1.0,
    rest_ms: float | None = None,
    memory_bytes: int | None = None,
    seconds: float = 8.0,
    device: jax.Device | None = None,
) -> Advice:
    """Which sampler, loss and optimizer suit these label counts, by a model of the noise and by times on this machine.

    It compiles and times the steps of an output layer of this size (of at most 65,536 classes: sampled steps do not
    depend on their number, and the full softmax' time is scaled), and weighs them by

        cost = (time per step + rest) (1 + V)^2,    V = (sum_c E[P(c)^2] / q(c) - 1) / S,

    where V is the relative variance of the estimated normaliser. This is a rule of thumb: noise asks for 1 + V times as
    many steps, and the logarithm of a noisy sum is off by about V / 2 nats, for which 1 + V is charged once more. P(c)
    is a **frequency model** of a softmax in training: a = .2 of the mass lies on one class, drawn by frequency p, and
    the rest is spread by frequency: E[P^2] = a^2 p + (1 - a^2) p^2. The share a is chosen so that the advice is near
    what was best in the race of trained models (docs/race.md). The model leaves out what samplers know of the
    embedding, so the variance of ``midx`` is not given: ``diagnose`` measures it on your own model. The longer
    the rest of the model takes, the more candidates pay.

    Args:
        counts: label frequencies.
        dim: of class vectors.
        batch_size: examples per step.
        labels_per_example: on average.
        rest_ms: milliseconds that the rest of the model takes per step; None: as long as the output layer with 1,024
            candidates.
        memory_bytes: of one device; None: what the device reports, or the machine's memory.
        seconds: for the measurements, besides compiling.
        device: to measure on; None: the default one.

    Returns:
        An ``Advice``.

    Raises:
        ValueError: for counts below 0 or none above, fewer than two classes, or numbers out of range.

    Example:
        >>> import numpy as np, candax as cx
        >>> counts = 1000.0 / np.arange(1, 301)
        >>> advice = cx.diagnostics.advise(counts, dim=8, batch_size=16, seconds=0.1)
        >>> sorted(advice.reasons)
        ['devices', 'groups', 'loss', 'num_sampled', 'optimizer', 'sampler']
    """
    check_positive("dim", dim)
    check_positive("batch_size", batch_size)
    check_positive("memory_bytes", memory_bytes, optional=True)
    if not 1 <= labels_per_example < np.inf:
        raise ValueError(f"expected labels_per_example of 1 or more, got {labels_per_example!r}.")
    if rest_ms is not None and not 0 <= rest_ms < np.inf:
        raise ValueError(f"expected rest_ms, milliseconds, of 0 or more, got {rest_ms!r}.")
    if not 0 < seconds < np.inf:
        raise ValueError(f"expected a finite number of seconds > 0, got {seconds!r}.")
    frequency = np.asarray(counts, np.float64)
    if len(frequency) < 2 or not (np.isfinite(frequency) & (frequency >= 0)).all() or not frequency.any():
        raise ValueError("expected finite counts >= 0 of at least two classes, some above 0; check the counts.")
    labels = max(1, round(labels_per_example))
    times = time_steps(frequency, dim=dim, batch_size=batch_size, labels=labels, seconds=seconds, device=device)
    options = _options(frequency, labels, times, times.of(_REST) if rest_ms is None else rest_ms)
    best = options[0]
    full = next(option for option in options if option.sampler == "full_softmax")
    reasons, unsure = {}, list(times.notes)

    rival = next((option for option in options if option.sampler != best.sampler and option.cost == option.cost), full)
    sizes = f"{best.milliseconds:.3g} ms per step at a variance of {best.variance:.3g}"
    if best.sampler == "full_softmax":
        reasons["sampler"] = f"over all classes: {best.milliseconds:.3g} ms per step, and no sampled way costs less."
        reasons["num_sampled"] = "there is nothing to sample."
    else:
        share = full.cost / best.cost
        reasons["sampler"] = f"{sizes}; the full softmax takes {full.milliseconds:.3g} ms: {share:.3g} times the cost."
        reasons["num_sampled"] = (
            f"more candidates cost more time than they save noise; {best.found:.1%} of labels are among them, and "
            f"{best.hits:.2g} of them are an example's own."
        )
    if best.sampler != "full_softmax" and rival.sampler != "full_softmax":
        fewer = max(1, best.num_sampled // 2)
        unsure.append(
            "this is a rule of thumb, no training: in the races of trained models (docs/race.md) its choice took up to "
            f"1.8 times as long as the best one. Try {rival.sampler} too, and {fewer:,} candidates."
        )
    if rival.cost < _UNSURE * best.cost:
        unsure.append(
            f"{best.sampler} (S = {best.num_sampled:,}) and {rival.sampler} (S = {rival.num_sampled:,}) are within "
            f"{rival.cost / best.cost:.2f} times of each other: try both."
        )
    p = frequency / frequency.sum()
    seen = p[p > 0]
    if 2 * len(seen) < len(p):
        unsure.append(
            f"{len(p) - len(seen):,} of {len(p):,} classes never occur: if labels are numbers of your own, count only "
            "those that occur (numpy.unique with return_inverse=True), and save the others' rows."
        )
    effective = float(np.exp(-np.sum(seen * np.log(seen))))
    if best.sampler != "full_softmax" and effective > len(p) / 4:
        unsure.append(
            f"labels are nearly flat (as {effective:,.0f} equal classes of {len(p):,}): candidates by frequency are "
            "hardly better than any, and the last per cents may take more steps, more candidates or the full softmax."
        )
    if best.sampler != "full_softmax":
        unsure.append(
            "the variance of samplers that follow the embedding (midx, kernel, lsh, resampled) depends on your class "
            "vectors: measure it with `candax diagnose` on a trained model."
        )

    optimizer, reasons["optimizer"] = _optimizer(best, frequency, batch_size * labels)
    loss = "full_softmax" if best.sampler == "full_softmax" else "one_vs_all" if labels > 1 else "css"
    reasons["loss"] = {
        "full_softmax": "the likelihood itself.",
        "one_vs_all": f"{labels_per_example:.2g} labels per example: each class is judged by itself.",
        "css": "one label per example: an estimate of the full softmax' own likelihood.",
    }[loss]
    gathered = batch_size * best.num_sampled * dim * _BYTES
    reasons["groups"] = (
        f"one shared set: scores are one product of matrices; a set per example would gather {_size(gathered)} of rows."
        if best.sampler != "full_softmax"
        else "there are no candidate sets."
    )
    table_bytes = len(p) * (dim + 1) * _BYTES * _COPIES
    memory = memory_bytes or _memory(device)
    # Half of the memory is left to the model and its activations.
    devices = 1 << max(0, int(np.ceil(np.log2(table_bytes / (memory / 2)))))
    reasons["devices"] = f"class vectors with Adam's moments take {_size(table_bytes)} of {_size(memory)} per device."
    return Advice(
        options,
        best.sampler,
        best.num_sampled,
        loss,
        optimizer,
        1,
        devices,
        table_bytes,
        reasons,
        tuple(unsure),
        _snippet(best, len(p), dim, loss, optimizer, devices),
    )


def _options(frequency: np.ndarray, labels: int, times: StepTimes, rest: float) -> tuple[Option, ...]:
    """Every sampler with every number of samples: first the best of each sampler, then the others, each by cost."""
    number, p, chances = len(frequency), frequency / frequency.sum(), _chances(frequency)
    sizes = [size for size in (2**i for i in range(6, 15)) if 2 * size <= number] or [max(1, number // 2)]
    found = [Option("full_softmax", number, times.full, 1.0, float(labels), 0.0, times.full + rest)]
    for size in sizes:
        for name, q in chances.items():
            variance = max(0.0, float(np.sum((_ON_ONE**2 * p + (1 - _ON_ONE**2) * p**2) / q)) - 1) / size
            among = float(np.sum(p * -np.expm1(size * np.log1p(-np.minimum(q, _SURE)))))
            hits = float(size * labels * np.sum(p * q))
            time = times.of(size)
            found.append(Option(name, size, time, among, hits, variance, (time + rest) * (1 + variance) ** 2))
    for size, time in times.midx.items():
        found.append(Option("midx", size, time, np.nan, np.nan, np.nan, np.nan))
    found.sort(key=lambda option: np.inf if np.isnan(option.cost) else option.cost)
    names = dict.fromkeys(option.sampler for option in found)  # by the cost of each one's best
    firsts = [next(option for option in found if option.sampler == name) for name in names]
    return tuple(firsts + [option for option in found if option not in firsts])


def _chances(frequency: np.ndarray) -> dict[str, np.ndarray]:
    """By which each sampler draws each class."""
    number = len(frequency)
    rank = np.argsort(np.argsort(-frequency, kind="stable"), kind="stable")
    smoothed = (frequency + 1) ** 0.75
    return {
        "uniform": np.full(number, 1 / number),
        "log_uniform": np.log1p(1 / (rank + 1)) / np.log(number + 1),
        "unigram": smoothed / smoothed.sum(),
    }


def _optimizer(best: Option, frequency: np.ndarray, labels: int) -> tuple[str, str]:
    """Of a step with so many labels; rows are used as labels or as candidates, frequent ones by many at once."""
    if best.sampler == "full_softmax":
        return "dense", "every step reads and writes all rows anyway."
    p, q = frequency / frequency.sum(), _chances(frequency)[best.sampler]
    unused = labels * np.log1p(-np.minimum(p, _SURE)) + best.num_sampled * np.log1p(-np.minimum(q, _SURE))
    every = float(np.median(1 / -np.expm1(unused)))
    if every > 10:
        why = f"half of the rows are used once in {every:.0f} steps or less often: a lazy Adam is another optimizer"
        return "exact", f"{why} than Adam at such gaps. Exact Adam takes at most twice the lazy step."
    return "lazy", f"half of the rows are used once in {every:.0f} steps or more often: what it misses is little."


def _memory(device: jax.Device | None) -> int:
    stats = (device or jax.local_devices()[0]).memory_stats() or {}
    return int(stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _snippet(best: Option, number: int, dim: int, loss: str, optimizer: str, devices: int) -> str:
    sampled = best.sampler != "full_softmax"
    arguments = {"unigram": ", smoothing=1.0"}.get(best.sampler, "")
    sampler = f"cx.samplers.{best.sampler}({best.num_sampled}{arguments})" if sampled else "None"
    mesh = f", mesh=cx.training.class_mesh({devices})" if devices > 1 else ""
    tables = ", tables=cx.rows.exact_adam(1e-3)" if optimizer == "exact" else ""
    return (
        "import optax, candax as cx\nfrom flax import nnx\n\n"
        f"head = cx.Head(\n    {number}, {dim}, sampler={sampler}, loss=cx.losses.{loss},\n"
        f"    counts=counts, rngs=nnx.Rngs(0){mesh},\n)\n"
        f"optimizer = cx.Optimizer(head, optax.adam(1e-3){tables})  # or of the model that holds the head\n"
    )
