"""The race: how soon each sampler and loss brings a recipe's model to nearly the full softmax's quality.

    candax experiment race                                             (extreme classification, python-stdlib)
    candax experiment race --dataset acl-authors --tf-idf
    candax experiment race --task sequences --dataset Beauty.txt
    candax experiment race --task links --dataset FOLDER
    candax experiment race --task language --dataset FOLDER
    candax experiment race --num-classes 1000000 --dim 128             (each class split into parts)
    candax experiment race --peers adaptive_softmax hierarchical_softmax mach            (they draw no candidates)

All contenders, the full softmax among them, have the same model and data, the same number of epochs (unless
--sampled-epochs gives those that sample more of their cheaper ones), and the same budget of tuning: each learning rate
of --rates, as a multiple of the recipe's, for a share of the epochs, measured on validation data; while the best is the
highest or the lowest so far, twice or half of it is tried, too (up to --more-rates). The best of them is trained with
in full and measured on test data. With --batches and --candidates the size of a batch and the number of candidates are
tuned, too, each after the other: those are taken that are soonest at 99 % of the best quality among the contender's own
trials. What was found is kept in the folder, as tuning.json. If the full training diverges, the next best setting is
taken; if all diverge, the row says "diverged" and the race goes on.
Seconds count all that a training needs, with refreshes, updates and the loading of batches, but not compiling,
measuring and the first build of an index, at the start. "to 98 %": seconds until a point of the curve, by straight
lines between points, is at 98 % of the best that the full softmax reached; with several seeds the mean over them, each
against the full softmax of the same seed, and none if one does not get there. "share": of the seconds that the full
softmax takes to get there itself.

Expected: docs/race.md.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from candax.data.tab_separated import name_of
from candax.experiments.race_peers import PeerName
from candax.experiments.race_split import split_classes
from candax.experiments.race_tasks import QUALITY, TASKS, Contender, TaskName, Trained, settings_of, trained_by
from candax.experiments.race_tuning import Curve, Setting, Tuned, tune
from candax.recipes import common
from candax.recipes.common.catalog import LossName, SamplerName

_FULL = "full_softmax"
# Over all classes these are the full softmax.
_OF_SOFTMAX = ("sampled_softmax", "css", "subset_softmax", "importance_sampling")


@dataclasses.dataclass(frozen=True)
class Race(common.Settings):
    """Tunes and trains every contender; prints a table, writes results.json and a picture."""

    task: TaskName = "extreme"
    """Which recipe's model and data."""
    dataset: str | None = None
    """As in the recipe; by default the recipe's own."""
    samplers: tuple[SamplerName, ...] = ("uniform", "unigram", "learned_unigram", "midx", "lsh_label")
    """Contenders: each of these samplers with each of the losses."""
    losses: tuple[LossName, ...] = ("css",)
    """Losses of the contenders."""
    all_classes: bool = False
    """Adds each of the losses over all classes, without a sampler, where that is not the full softmax."""
    peers: tuple[PeerName, ...] = ()
    """Adds other output layers, which draw no candidates, where the task is extreme or language."""
    tf_idf: bool = False
    """As in `candax train`, where the task is extreme."""
    num_classes: common.Count | None = None
    """Classes are split into parts by the examples' features until there are so many, where the task is extreme."""
    num_sampled: common.Count | None = None
    """Candidates that a batch shares; by default the recipe's."""
    dim: common.Count | None = None
    """Coordinates of the class vectors; by default the recipe's."""
    epochs: common.Positive | None = None
    """Passes over the training data; by default the recipe's."""
    sampled_epochs: common.Positive | None = None
    """Passes of those that sample, where they are to have more steps than the full softmax, which take less time."""
    rates: tuple[common.Positive, ...] = (0.5, 1.0, 2.0)
    """Learning rates that are tried, as multiples of the recipe's."""
    more_rates: common.NonNegative = 3
    """How many further ones are tried while the best is the highest or the lowest; a single rate is taken as it is."""
    batches: tuple[common.Positive, ...] = (1.0,)
    """Batch sizes that are tried, as multiples of the recipe's; with the first, all rates are tried."""
    candidates: tuple[common.Positive, ...] = (1.0,)
    """Numbers of candidates that are tried, as multiples of the recipe's or of --num-sampled."""
    trial: common.Share = 0.25
    """The share of the epochs that each trial takes."""
    nearly: common.Share = 0.98
    """The share of the full softmax's best quality that is to be reached."""
    seeds: common.Count = 1
    """Trainings of each contender, with seeds from --seed on."""
    QUICK: ClassVar = {"samplers": ("uniform",), "rates": (1.0,)}

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        for name in ("rates", "batches", "candidates"):
            self.expect(bool(getattr(self, name)), "one multiple or more", name)
        able = [name for name, task in TASKS.items() if task.peers is not None]
        self.expect(not self.peers or self.task in able, f"--task {' or '.join(able)} with --peers", "task", "peers")
        self.expect(not self.tf_idf or self.task == "extreme", "--task extreme with --tf-idf", "task", "tf_idf")
        of_extreme = self.num_classes is None or self.task == "extreme"
        self.expect(of_extreme, "--task extreme with --num-classes", "task", "num_classes")

    def recipe(self, **changes: Any) -> Any:
        """The settings of the recipe."""
        given: dict[str, Any] = {"dataset": self.dataset, "num_sampled": self.num_sampled, "dim": self.dim}
        given |= {"epochs": self.epochs, "out": self.out} | ({"tf_idf": True} if self.tf_idf else {})
        return settings_of(self.task, self.quick, **{**given, **changes})

    def load(self, split: str) -> Any:
        """What is trained on and measured: the recipe's, with its classes split where more are asked for."""
        loaded = TASKS[self.task].load(self.recipe(split=split))
        return loaded if self.num_classes is None else split_classes(loaded, self.num_classes)


@common.command
def race(settings: Race) -> common.Study:
    """Runs the race; a row for each contender, the full softmax first."""
    task = TASKS[settings.task]
    numbers = {_sizes(settings, Setting(1.0, candidates=of))["num_sampled"] for of in settings.candidates}
    loaded = functools.cache(settings.load)
    data = task.digest(loaded("test"))
    contenders = {_FULL: Contender()}
    if settings.all_classes:
        contenders |= {
            f"all classes, {loss}": Contender(loss=loss) for loss in settings.losses if loss not in _OF_SOFTMAX
        }
    contenders |= {peer: Contender(peer=peer) for peer in settings.peers}
    longer = "" if settings.sampled_epochs is None else f", {settings.sampled_epochs:g} epochs"
    contenders |= {
        f"{sampler}, {loss}{longer}": Contender(sampler, loss)
        for loss in settings.losses
        for sampler in settings.samplers
    }
    methods = []
    for name, contender in contenders.items():
        train, samples = functools.partial(_trained, settings, loaded, contender), contender.sampler is not None
        tuned = functools.cache(functools.partial(_tuned, settings, data, name, train, samples))
        for seed in range(settings.seed, settings.seed + settings.seeds):
            run = functools.partial(_run, settings, train, tuned, samples, name, seed)
            methods.append(common.Method({"method": name, "seed": seed}, run))
    percent = f"{100 * settings.nearly:g} %"
    tried = {("batch", "batch", ","): settings.batches, ("S", "candidates", ","): settings.candidates}
    sizes = [of for of, multiples in tried.items() if multiples != (1.0,)]
    split = "" if settings.num_classes is None else f" split into {settings.num_classes:,} classes or more"
    return common.Study(
        f"{settings.task}, {name_of(settings.dataset or settings.recipe().dataset)}{split}: "
        f"{' to '.join(f'{number:,}' for number in sorted({min(numbers), max(numbers)}))} candidates",
        methods,
        (
            common.Column("method", "method"),
            common.Column("rate", "rate", ".3g", _rates),
            *(common.Column(*of) for of in sizes),
            common.Column(f"best {task.heading}", "best", ".4f", spread=True),
            common.Column("of full", "of_full", ".3f", common.relative("best")),
            common.Column(f"to {percent}, s", "to_nearly", ".0f", functools.partial(_to_nearly, settings.nearly)),
            common.Column("share", "share", ".3f", functools.partial(_share, settings.nearly)),
            common.Column(task.heading, QUALITY, ".4f"),
            common.Column("ms/step", "ms_per_step", ".1f"),
            common.Column("faster", "faster", ".1f", common.over("ms_per_step")),
            common.Column("sec.", "seconds", ".0f"),
        ),
        (
            common.Panel(
                [
                    common.curves("seconds", QUALITY, marker="."),
                    common.level(percent, functools.partial(_level, settings.nearly)),
                ],
                {"xlabel": "training time in seconds (log scale)", "xscale": "log", "ylabel": task.heading},
            ),
        ),
        may_change=("samplers", "losses", "all_classes", "peers", "sampled_epochs", "seeds", "more_rates"),
        data=data,
        caption=f"share: of the full softmax's seconds to {percent} of its best",
    )


def _trained(
    settings: Race,
    loaded: Callable[[str], Any],
    contender: Contender,
    of: Setting,
    *,
    split: str,
    share: float,
    seed: int,
) -> Trained:
    usual, task = settings.recipe(split=split), TASKS[settings.task]
    epochs = usual.epochs if contender.sampler is None else settings.sampled_epochs or usual.epochs
    changes = {"learning_rate": of.rate * task.rate(usual), "epochs": share * epochs, **_sizes(settings, of)}
    return trained_by(settings.task, dataclasses.replace(usual, **changes), loaded(split), contender, seed)


def _sizes(settings: Race, of: Setting) -> dict[str, int]:
    """The recipe's settings for batch and number of candidates; the batch stays even, as links have it."""
    usual, batch = settings.recipe(), TASKS[settings.task].batch
    even = 2 * max(1, round(of.batch * getattr(usual, batch) / 2))
    whole = {batch: getattr(usual, batch) if of.batch == 1 else even}
    return {**whole, "num_sampled": max(1, round(of.candidates * usual.num_sampled))}


def _tuned(settings: Race, data: str, name: str, train: Callable[..., Trained], samples: bool) -> Tuned:
    """Tuned on the curve's validation examples: once, as seconds differ each time, also where a race goes on."""
    numbers = settings.candidates if samples else settings.candidates[:1]

    def trial(of: Setting) -> Curve:
        training, pair = train(of, split="validation", share=settings.trial, seed=settings.seed)
        shown = f"rate {of.rate:g}"
        if len(settings.batches) == len(numbers) == 1:
            end = training.by(*pair, shown, measure=training.on_the_way, on_the_way=None)(None)
            return {"seconds": [end["seconds"]], QUALITY: [end[QUALITY]]}
        shown += f", batch {of.batch:g}, candidates {of.candidates:g}"
        return training.by(*pair, shown, measure=lambda model: {}, measured_at=common.MEASURED_AT)(None)["curve"]

    def found() -> Tuned:
        return tune(trial, settings.rates, settings.more_rates, settings.batches, numbers, settings.nearly)

    others = ("out", "seeds", "samplers", "losses", "all_classes", "peers")
    of = {name: value for name, value in dataclasses.asdict(settings).items() if name not in others}
    kept = common.kept_once(settings.out / "tuning.json", name, {**of, "data": data}, found)
    return Tuned([Setting(*of) for of in kept[0]], kept[1])


def _run(
    settings: Race,
    train: Callable[..., Trained],
    tuned: Callable[[], Tuned],
    samples: bool,
    name: str,
    seed: int,
    folder: Path | None,
) -> dict[str, Any]:
    order, trials = tuned()

    def attempt(of: Setting, folder: Path | None) -> dict[str, Any]:
        training, pair = train(of, split="test", share=1.0, seed=seed)
        figures = training.by(*pair, name, measured_at=common.MEASURED_AT)(folder)
        return {**figures, "best": max(figures["curve"][QUALITY])}

    attempts = {f"{of.rate:g} {of.batch:g} {of.candidates:g}": of for of in order}
    runs = {label: functools.partial(attempt, of) for label, of in attempts.items()}
    figures = common.first_finite(runs, "rate")(folder)
    of = order[0] if figures["rate"] is None else attempts[figures["rate"]]
    sizes = _sizes(settings, of)
    return {
        **figures,
        "rate": None if figures["rate"] is None else of.rate,
        "diverged": float(figures["rate"] is None),
        "diverged_rates": [attempts[label].rate for label in figures["diverged"]],
        "batch": sizes[TASKS[settings.task].batch],
        "candidates": sizes["num_sampled"] if samples else None,
        "trials": trials,
    }


def _rates(row: common.Row, rows: Sequence[common.Row]) -> Any:
    """The rate that was trained with, or those of the seeds where they differ; seeds without one "diverged"."""
    del rows
    found = list(dict.fromkeys(row.get("rate_by_seed") or [row["rate"]]))
    found = [rate for rate in found if rate is not None] + (["diverged"] if row.get("diverged") else [])
    return found[0] if len(found) == 1 else found


def _full(rows: Sequence[common.Row]) -> common.Row:
    return next(row for row in rows if row["method"] == _FULL)


def _level(nearly: float, rows: Sequence[common.Row]) -> float | None:
    best = _full(rows).get("best")
    return None if best is None else nearly * best


def _to_nearly(nearly: float, row: common.Row, rows: Sequence[common.Row]) -> float | None:
    full = _full(rows)
    if row.get("diverged") or full.get("diverged"):
        return None
    seeds = zip(row["curve_by_seed"], full["best_by_seed"], strict=True)
    found = [common.reaching(curve, QUALITY, nearly * best, "seconds") for curve, best in seeds]
    reached = [seconds for seconds in found if seconds is not None]
    return sum(reached) / len(reached) if len(reached) == len(found) else None


def _share(nearly: float, row: common.Row, rows: Sequence[common.Row]) -> float | None:
    own, full = (_to_nearly(nearly, of, rows) for of in (row, _full(rows)))
    return None if own is None or full is None else own / max(full, 1e-9)
