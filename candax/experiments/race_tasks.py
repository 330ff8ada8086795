"""The problems of the race: the recipes' models and data, trained by any sampler and loss and measured on the way."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from candax import losses
from candax.base import Sampler
from candax.recipes import common
from candax.recipes.common.catalog import LOSSES, LossName, SamplerName
from candax.recipes.extreme.train import Train
from candax.recipes.language import command as language
from candax.recipes.links import command as links
from candax.recipes.sequences import command as sequences

TaskName: TypeAlias = Literal["extreme", "sequences", "links", "language"]
Pair: TypeAlias = tuple[Sampler | None, Callable[..., Any]]
Trained: TypeAlias = tuple[common.Training, Pair]
QUALITY = "quality"


class Task(NamedTuple):
    """A recipe that takes part in the race.

    Attributes:
        settings: of the recipe, at their defaults.
        heading: what its quality is called; more is better.
        quality: the quality in the recipe's figures.
        load: loads what is trained on and measured, from settings.
        training: from settings, what was loaded and the seed.
        rate: the learning rate of the settings, or of the recipe where they have none.
    """

    settings: Any
    heading: str
    quality: Callable[[dict[str, Any]], float]
    load: Callable[[Any], Any]
    training: Callable[[Any, Any, int], Trained]
    rate: Callable[[Any], float] = lambda settings: float(settings.learning_rate)


def _extreme(settings: Train, dataset: Any, seed: int) -> Trained:
    training = settings.training(dataset, seed=seed)
    if settings.sampler is None:
        return training, (None, common.full_softmax(settings.batch_size, dataset.num_classes))
    return training, settings.pair_of(dataset.num_classes)


def _sequences(settings: sequences.SequencesSettings, found: Any, seed: int) -> Trained:
    return sequences.training_of(settings, found, seed), sequences.pair_of(settings)


def _links(settings: links.LinksSettings, problem: Any, seed: int) -> Trained:
    return links.measured_training(settings, problem, links.METHODS["complex"], seed)


TASKS: dict[TaskName, Task] = {
    "extreme": Task(
        Train(),
        "P@1",
        lambda figures: figures["p_at_1"],
        lambda settings: settings.load(),
        _extreme,
        lambda settings: settings.learning_rate or settings.LINEAR_RATE,
    ),
    "sequences": Task(
        sequences.SequencesSettings(),
        "nDCG@10",
        lambda figures: figures["ndcg@10"],
        sequences.sequences_of,
        _sequences,
    ),
    "links": Task(links.LinksSettings(), "MRR", lambda figures: figures["mrr"], links.problem_of, _links),
    "language": Task(
        language.LanguageSettings(),
        "1 / perplexity",
        # On the way it is the validation part's, at the end that of the part which is asked for.
        lambda figures: 1 / next(figures[name] for name in ("test", "validation", "perplexity") if name in figures),
        language.text_of,
        language.training_of,
    ),
}


def settings_of(task: TaskName, quick: bool, **changes: Any) -> Any:
    """The recipe's settings with changes; values of None are the recipe's own."""
    settings = TASKS[task].settings
    given = {name: value for name, value in changes.items() if value is not None}
    return dataclasses.replace(settings, quick=quick, **given).ready()


def trained_by(
    task: TaskName, settings: Any, loaded: Any, sampler: SamplerName | None, loss: LossName | None, seed: int
) -> Trained:
    """How the recipe's model is trained by a sampler and a loss, and measured as ``quality``.

    Args:
        task: the recipe.
        settings: of the recipe.
        loaded: what its ``load`` gave.
        sampler: by its name; None: over all classes.
        loss: by its name; None: the full softmax.
        seed: of everything that is drawn.
    """
    of = TASKS[task]
    if sampler is None:
        # Of "extreme" the sampler says that there is none, of the others the loss.
        changes: dict[str, Any] = {"sampler": None} if task == "extreme" else {"loss": None}
    else:
        changes = {"sampler": sampler, "loss": loss}
    training, pair = of.training(dataclasses.replace(settings, **changes), loaded, seed)
    if sampler is None and loss is not None:
        pair = None, losses.over_all_classes(LOSSES[loss])
    on_the_way = training.on_the_way
    assert on_the_way is not None

    def measured(measure: common.Measure, model: Any) -> dict[str, float]:
        return {QUALITY: of.quality(dict(measure(model)))}

    training = dataclasses.replace(
        training,
        measure=functools.partial(measured, training.measure),
        on_the_way=functools.partial(measured, on_the_way),
    )
    return training, pair
