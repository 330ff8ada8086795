"""The problems of the race: the recipes' models and data, trained by any sampler and loss and measured on the way."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Int

import candax as cx
from candax import data, files, losses
from candax.base import Sampler
from candax.experiments import race_peers
from candax.recipes import common
from candax.recipes.common.catalog import LOSSES, LossName, SamplerName
from candax.recipes.extreme.embedding import embedded
from candax.recipes.extreme.problem import curve_rows
from candax.recipes.extreme.train import Train
from candax.recipes.language import command as language
from candax.recipes.links import command as links
from candax.recipes.sequences import command as sequences
from candax.recipes.sequences.building import pair_of

TaskName: TypeAlias = Literal["extreme", "sequences", "links", "language"]
Pair: TypeAlias = tuple[Sampler | None, Callable[..., Any]]
Trained: TypeAlias = tuple[common.Training, Pair]
QUALITY = "quality"
# Examples whose probabilities of all classes are held at once.
_AT_ONCE = 256


class Task(NamedTuple):
    """A recipe that takes part in the race.

    Attributes:
        settings: of the recipe, at their defaults.
        heading: what its quality is called; more is better.
        quality: the quality in the recipe's figures.
        load: loads what is trained on and measured, from settings.
        training: from settings, what was loaded and the seed.
        digest: of what was loaded, to tell other data by.
        batch: the name of the setting that says how large a batch is.
        rate: the learning rate of the settings, or of the recipe where they have none.
        peers: makes of a training one that is measured with an output layer of ``race_peers``, where it can be.
    """

    settings: Any
    heading: str
    quality: Callable[[dict[str, Any]], float]
    load: Callable[[Any], Any]
    training: Callable[[Any, Any, int], Trained]
    digest: Callable[[Any], str]
    batch: str
    rate: Callable[[Any], float] = lambda settings: float(settings.learning_rate)
    peers: Callable[[Any, common.Training], common.Training] | None = None


class Contender(NamedTuple):
    """What takes part: the full softmax if there is none of the three.

    Attributes:
        sampler: by its name; None: over all classes.
        loss: by its name; None: the full softmax.
        peer: an output layer in place of the recipe's, with neither sampler nor loss.
    """

    sampler: SamplerName | None = None
    loss: LossName | None = None
    peer: race_peers.PeerName | None = None


def _extreme(settings: Train, dataset: Any, seed: int) -> Trained:
    return settings.training(dataset, seed=seed), settings.pair_of(dataset.num_classes)


def _sequences(settings: sequences.SequencesSettings, found: Any, seed: int) -> Trained:
    return sequences.training_of(settings, found, seed), pair_of(settings)


def _links(settings: links.LinksSettings, problem: Any, seed: int) -> Trained:
    return links.measured_training(settings, problem, links.METHODS["complex"], seed)


TASKS: dict[TaskName, Task] = {
    "extreme": Task(
        Train(),
        "P@1",
        lambda figures: figures["p_at_1"],
        lambda settings: settings.load(),
        _extreme,
        lambda dataset: dataset.digest,
        "batch_size",
        lambda settings: settings.learning_rate or settings.LINEAR_RATE,
        peers=lambda dataset, training: _precision(dataset, training),
    ),
    "sequences": Task(
        sequences.SequencesSettings(),
        "nDCG@10",
        lambda figures: figures["ndcg@10"],
        sequences.sequences_of,
        _sequences,
        lambda found: files.digest_of(found.items, found.offsets),
        "num_rows",
    ),
    "links": Task(
        links.LinksSettings(),
        "MRR",
        lambda figures: figures["mrr"],
        links.problem_of,
        _links,
        lambda problem: files.digest_of(problem.graph.train, problem.graph.valid, problem.graph.test),
        "batch_size",
    ),
    "language": Task(
        language.LanguageSettings(),
        "1 / perplexity",
        # On the way it is the validation part's, at the end that of the part which is asked for.
        lambda figures: 1 / next(figures[name] for name in ("test", "validation", "perplexity") if name in figures),
        language.text_of,
        language.training_of,
        lambda text: files.digest_of(text.train, text.valid, text.test),
        "num_streams",
        peers=lambda text, training: training,
    ),
}


def settings_of(task: TaskName, quick: bool, **changes: Any) -> Any:
    """The recipe's settings with changes; values of None are the recipe's own."""
    settings = TASKS[task].settings
    given = {name: value for name, value in changes.items() if value is not None}
    return type(settings)(quick=quick, **given).ready()


def trained_by(task: TaskName, settings: Any, loaded: Any, contender: Contender, seed: int) -> Trained:
    """How the recipe's model is trained by a contender, and measured as ``quality``.

    Args:
        task: the recipe.
        settings: of the recipe.
        loaded: what its ``load`` gave.
        contender: what is trained with.
        seed: of everything that is drawn.
    """
    of, sampler, loss = TASKS[task], contender.sampler, contender.loss
    if sampler is None:
        # Of "extreme" the sampler says that there is none, of the others the loss.
        changes: dict[str, Any] = {"sampler": None} if task == "extreme" else {"loss": None}
    else:
        changes = {"sampler": sampler, "loss": loss}
    training, pair = of.training(dataclasses.replace(settings, **changes), loaded, seed)
    if sampler is None and loss is not None:
        pair = None, losses.over_all_classes(LOSSES[loss])
    if contender.peer is not None:
        assert of.peers is not None
        training = of.peers(loaded, _behind(training, race_peers.PEERS[contender.peer], seed))
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


def _behind(training: common.Training, peer: Callable[[race_peers.Start], nnx.Module], seed: int) -> common.Training:
    """The same training with another output layer."""
    batches, number = training.batches, training.num_steps

    def labels() -> Iterator[np.ndarray]:
        for step in range(number):
            yield np.asarray(race_peers.label_sets(batches[divmod(step, batches.batches_per_epoch)]))

    def make(sampler: Sampler | None, loss: Any) -> tuple[race_peers.Behind, cx.Optimizer]:
        model, optimizer = training.make(sampler, loss)
        head, size = model.head, model.head.num_classes
        # No class has a count of 0, whose logarithm a bias starts from.
        counts = np.asarray(head.counts[...], np.float64)[:size] + 0.1
        start = race_peers.Start(np.asarray(head.vectors[...])[:size], counts, labels, seed)
        behind = race_peers.Behind(model.encoder, peer(start))
        return behind, cx.Optimizer(behind, optimizer.tx, clip_norm=optimizer.clip_norm, seed=seed)

    return dataclasses.replace(training, make=make, loss_fn=race_peers.loss_fn)


def _precision(dataset: data.Dataset, training: common.Training) -> common.Training:
    """Measured by precision at 1 alone, from the probabilities of all classes, on the examples that all others have."""

    def measure(rows: Int[np.ndarray, " n"], model: race_peers.Behind) -> dict[str, float]:
        hits = []
        for part in np.split(rows, range(_AT_ONCE, len(rows), _AT_ONCE)):
            truth = dataset.test.labels[part]
            best = np.asarray(_best(*nnx.split(model.head), embedded(model, dataset.test.features[part])))
            labelled = np.diff(truth.indptr) > 0
            hits.append(np.asarray(truth[np.arange(len(best)), best], np.float64).ravel()[labelled])
        return {"p_at_1": float(np.concatenate(hits).mean())}

    return dataclasses.replace(
        training,
        measure=functools.partial(measure, np.arange(len(dataset.test))),
        on_the_way=functools.partial(measure, curve_rows(dataset)),
    )


@functools.partial(jax.jit, static_argnums=0)
def _best(graph: Any, arrays: Any, h: jax.Array) -> jax.Array:
    return jnp.argmax(nnx.merge(graph, arrays).log_probs(h), axis=1)
