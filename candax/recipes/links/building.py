"""The model of `candax links` and how it is trained, from its settings and a ``LinkMethod``."""

import functools
from typing import Any

import candax as cx
from candax import data, losses, models
from candax.base import Sampler
from candax.recipes import common
from candax.recipes.common.catalog import LOSSES, SAMPLERS
from candax.recipes.links import training


def training_of(
    settings: Any, method: Any, graph: data.Graph, seed: int
) -> tuple[common.Training, tuple[Sampler | None, Any]]:
    """How a model is trained, without measures; and its sampler and loss."""
    batches = data.QuestionBatches(graph, min(settings.batch_size, 2 * len(graph.train)), seed)
    num_steps = max(1, round(settings.epochs * batches.batches_per_epoch))
    trained = common.Training(
        functools.partial(_make, settings, method, graph, num_steps, seed),
        batches,
        num_steps,
        measure=lambda model: {},
        measured_at=(0.1, 0.25, 0.5, 0.75, 1.0),
        loss_fn=training.regularised(settings.regulariser, settings.regularisation),
    )
    return trained, _pair(settings)


def _make(
    settings: Any,
    method: Any,
    graph: data.Graph,
    num_steps: int,
    seed: int,
    sampler: Sampler | None,
    loss: Any,
) -> tuple[models.Classifier, cx.Optimizer]:
    model = link_model_of(settings, method, graph, sampler, loss, seed=seed)
    return model, cx.Optimizer(model, common.row_adagrad(settings.learning_rate, num_steps), seed=seed)


def link_model_of(
    settings: Any,
    method: Any,
    graph: data.Graph,
    sampler: Sampler | None = None,
    loss: Any = losses.full_softmax,
    *,
    seed: int = 0,
) -> models.Classifier:
    """The model of a method."""
    return training.link_model(
        graph,
        settings.dim,
        product=method.product,
        distance=method.distance,
        scale=settings.scale,
        dropout=settings.dropout,
        sampler=sampler,
        loss=loss,
        seed=seed,
    )


def _pair(settings: Any) -> tuple[Sampler | None, Any]:
    if settings.loss is None:
        return None, losses.full_softmax
    number = settings.num_sampled
    distinct = settings.sampler == "uniform"
    sampler = cx.samplers.uniform(number, replacement=False) if distinct else SAMPLERS[settings.sampler](number)
    if settings.labels_too and settings.sampler != "in_batch":
        sampler = training.and_labels(sampler)
    return sampler, losses.with_smoothing(LOSSES[settings.loss], settings.smoothing)
