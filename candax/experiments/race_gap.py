"""What a sampled loss lacks of the full softmax where no sampler comes near it: candidates, or the right end.

    candax experiment race-gap                                                  (identifiers of the standard library)
    candax experiment race-gap --dataset Beauty.txt --seeds 3

The model of `candax sequences` with more and more candidates, up to all items, beside the full softmax; and with
another loss for the last part of the steps (``--last``): the full softmax or four times the candidates after a sampled
loss, and a sampled loss after the full softmax. All have the same steps, rates and initial values. If the sampled loss
had another optimum, the full softmax's model would leave its own under it. How good each is, is also shown for thirds
of the questions, by how often their answers occur in training, and `cx.diagnostics.diagnose` measures, for the
candidates that a training ended with, bias and noise of the gradient and the bias of the optimum on its own model.

Expected: docs/race.md, "Sequences, Beauty".
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from flax import nnx

import candax as cx
from candax.experiments.race_tasks import TASKS, settings_of
from candax.recipes import common
from candax.recipes.common.catalog import LOSSES, LossName
from candax.recipes.sequences import command as sequences
from candax.recipes.sequences.building import pair_of
from candax.recipes.sequences.files import Questions, Sequences
from candax.recipes.sequences.packing import PackedBatches
from candax.recipes.sequences.scoring import embedded, evaluate, model_scores

_FULL = "full_softmax"
# Parts of the questions, by how often their answers occur.
_THIRDS = ("tail", "middle", "head")
_FIGURE = "ndcg@10"
_MEASURES = ("class_gradient_bias", "class_gradient_noise", "optimum_bias")
# Examples that share a set of candidates where it is diagnosed, and the sets.
_EXAMPLES, _DRAWS = 256, 32


class _Part(NamedTuple):
    """A share of the steps, and the candidates in them; None: the full softmax."""

    share: float
    num_sampled: int | None


@dataclasses.dataclass(frozen=True)
class Gap(common.Settings):
    """Trains with more candidates, and with two losses in turn; prints a table, writes results.json and a picture."""

    dataset: str | None = None
    """As in `candax sequences`; by default the recipe's own."""
    num_sampled: tuple[common.Count, ...] = (256, 1024, 4096)
    """Candidates that a batch shares, in addition to all items."""
    loss: LossName = "css"
    """Loss of the trainings with candidates."""
    last: common.Share = 0.25
    """The share of the steps, the last ones, that have another loss."""
    learning_rate: common.Positive = 8e-3
    """As in `candax sequences`, for all alike; the race's trials chose this one."""
    epochs: common.Positive | None = None
    """Passes over the users; by default the recipe's."""
    seeds: common.Count = 1
    """Trainings of each method, with seeds from --seed on."""
    QUICK: ClassVar = {"num_sampled": (16,)}

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        self.expect(bool(self.num_sampled), "one number of candidates or more", "num_sampled")

    def recipe(self, num_sampled: int | None) -> Any:
        """The settings of the recipe with so many candidates; None: the full softmax."""
        changes = {"dataset": self.dataset, "epochs": self.epochs, "learning_rate": self.learning_rate}
        usual = settings_of("sequences", self.quick, out=self.out, **changes)
        if num_sampled is None:
            return dataclasses.replace(usual, loss=None)
        return dataclasses.replace(usual, num_sampled=num_sampled, loss=self.loss)

    def methods(self, num_items: int) -> dict[str, tuple[_Part, ...]]:
        """The parts of each training, by its name."""
        numbers = [*sorted({number for number in self.num_sampled if number < num_items}), num_items]
        middle = (len(numbers) - 1) // 2
        usual, more = numbers[middle], numbers[min(middle + 1, len(numbers) - 1)]
        first, then = 1 - self.last, self.last
        found: dict[str, tuple[_Part, ...]] = {_FULL: (_Part(1.0, None),)}
        found |= {f"{number:,} candidates": (_Part(1.0, number),) for number in numbers}
        if first > 0:
            found[f"{usual:,}, then {more:,}"] = _Part(first, usual), _Part(then, more)
            found[f"{usual:,}, then full softmax"] = _Part(first, usual), _Part(then, None)
            found[f"full softmax, then {usual:,}"] = _Part(first, None), _Part(then, usual)
        return found


@common.command
def gap(settings: Gap) -> common.Study:
    """Runs the study; a row for each training."""
    found = sequences.sequences_of(settings.recipe(None))
    questions = settings.recipe(None).questions(found)
    methods = settings.methods(found.num_items)

    def lines(rows: Sequence[common.Row]) -> list[common.Line]:
        (full,) = (row for row in rows if row["method"] == _FULL)
        shown = [row for row in rows if len(methods[row["method"]]) == 1 and row is not full]
        numbers = [row["num_sampled"] for row in shown]
        return [
            common.Line(label, numbers, [row[name] / full[name] for row in shown], {"marker": "o"})
            for name, label in ((_FIGURE, "all questions"), *((third, third) for third in _THIRDS))
            if full.get(name)
        ]

    return common.Study(
        f"{found.name}: next of {found.num_items:,} items, {len(questions):,} users, {settings.loss}",
        [
            common.Method({"method": name, "seed": seed}, functools.partial(_run, settings, found, parts, name, seed))
            for name, parts in methods.items()
            for seed in range(settings.seed, settings.seed + settings.seeds)
        ],
        (
            common.Column("method", "method"),
            common.Column("nDCG@10", _FIGURE, ".4f", spread=True),
            common.Column("of full", "of_full", ".3f", common.relative(_FIGURE)),
            *(common.Column(third, third, ".4f") for third in _THIRDS),
            common.Column("gradient's bias", _MEASURES[0], ".3f"),
            common.Column("noise", _MEASURES[1], ".2f"),
            common.Column("optimum's bias", _MEASURES[2], ".3f"),
            common.Column("ms/step", "ms_per_step", ".1f"),
            common.Column("sec.", "seconds", ".0f"),
        ),
        [common.Panel(lines, {"xscale": "log", "xlabel": "candidates", "ylabel": "nDCG@10, of the full softmax's"})],
        may_change=("num_sampled", "seeds"),
        data=TASKS["sequences"].digest(found),
        caption="tail, middle, head: nDCG@10 of thirds of the questions, by how often their answers occur in training",
    )


def _run(
    settings: Gap, found: Sequences, parts: Sequence[_Part], name: str, seed: int, folder: Path | None
) -> dict[str, Any]:
    model, seconds, steps = _trained(settings, found, parts, name, seed, folder)
    last = settings.recipe(parts[-1].num_sampled)
    questions = last.questions(found)
    of = {third: _quality(model, found, some, last.length) for third, some in _thirds(found, questions).items()}
    diagnosed = {} if last.loss is None else _diagnosed(last, model, found, questions)
    sampled = {} if last.loss is None else {"num_sampled": last.num_sampled}
    figures = {_FIGURE: _quality(model, found, questions, last.length), **of, **sampled, **diagnosed}
    return {**figures, "steps": steps, "seconds": seconds, "ms_per_step": 1e3 * seconds / max(1, steps - len(parts))}


def _trained(
    settings: Gap, found: Sequences, parts: Sequence[_Part], name: str, seed: int, folder: Path | None
) -> tuple[Any, float, int]:
    """The averaged weights after all parts, the seconds and the steps; each part goes on where the last one ended."""
    model: Any = None
    optimizer: Any = None
    seconds, before, share = 0.0, 0, 0.0
    for number, part in enumerate(parts):
        of = settings.recipe(part.num_sampled)
        training = sequences.training_of(of, found, seed, measured=False)
        later = training.make(*pair_of(of))
        if model is not None:
            nnx.update(later[0], nnx.state(model, nnx.Param))
            nnx.update(later[1], nnx.state(optimizer))
        model, optimizer = later
        share += part.share
        steps = round(share * training.num_steps)
        batches = PackedBatches(found, of.num_rows, of.length, seed + (number << 16))
        fitted = cx.training.fit(
            model,
            optimizer,
            batches,
            num_steps=steps - before,
            folder=folder and folder / str(number),
            checkpoint_every=training.checkpoint_every,
            keep=1,
            description=f"{name}, seed {seed}",
        )
        before, seconds = steps, seconds + fitted.seconds
    return cx.training.averaged_model(model, optimizer), seconds, before


def _thirds(found: Sequences, questions: Questions) -> dict[str, Questions]:
    often = found.counts()[questions.answers]
    which = np.searchsorted(np.quantile(often, (1 / 3, 2 / 3)), often)
    parts = {name: questions[np.flatnonzero(which == number)] for number, name in enumerate(_THIRDS)}
    return {name: part for name, part in parts.items() if len(part)}


def _quality(model: Any, found: Sequences, questions: Questions, length: int) -> float:
    return evaluate(model_scores(model, found, length=length), found, questions, ks=(10,))[_FIGURE]


def _diagnosed(settings: Any, model: Any, found: Sequences, questions: Questions) -> dict[str, float | None]:
    """Bias and noise of the loss without smoothing, by the sampler of the training."""
    some = questions.some(_EXAMPLES)
    sampler, _ = pair_of(settings)
    assert sampler is not None
    result = cx.diagnostics.diagnose(
        model.head.classes(),
        embedded(model, found, some, settings.length),
        some.answers[:, None],
        cx.diagnostics.pairs({"own": lambda number: sampler}, {settings.loss: LOSSES[settings.loss]}),
        num_sampled=[settings.num_sampled],
        num_draws=_DRAWS,
        key=jax.random.key(settings.seed),
    )
    (row,) = result.to_rows()
    return {name: row[name] for name in _MEASURES}
