"""The two towers of `candax retrieve`: made from its settings, what they are trained with, and their file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

import candax as cx
from candax import losses, models, samplers
from candax.base import Sampler
from candax.recipes.common.catalog import DISTINCT, LOSSES, SAMPLERS, and_labels, for_computed
from candax.recipes.common.finished import Finished
from candax.recipes.retrieval.features import NOTHING, FeaturePart, Features, ItemTower, Known
from candax.recipes.retrieval.tower import UserTower
from candax.recipes.sequences.files import Sequences
from candax.recipes.sequences.next_item import save_model

TASK = "retrieve"


def two_towers(
    settings: Any,
    num_items: int,
    sampler: Sampler | None = None,
    loss: Any = losses.full_softmax,
    *,
    counts: np.ndarray | None = None,
    seed: int = 0,
    known: Known = NOTHING,
) -> models.Classifier:
    """The users' tower, followed by a head without biases whose classes are the items."""
    rngs = nnx.Rngs(seed)
    if known.items is None:
        table = cx.Embed(num_items, settings.dim, embedding_init=nnx.initializers.normal(0.04), rngs=rngs)
        items: dict[str, Any] = {"table": table}
    else:
        items = {"vectors": ItemTower(num_items, known.items, settings.dim, rngs=rngs)}
    head = cx.Head(num_items, **items, sampler=sampler, loss=loss, counts=counts, biases=False, rngs=rngs)
    tower = UserTower(
        head,
        settings.hidden_dim,
        tied=not settings.separate_tables,
        recency=settings.recency,
        item_dropout=settings.item_dropout,
        dropout=settings.dropout,
        users=None if known.users is None else FeaturePart(known.users, settings.dim, rngs=rngs),
        rngs=rngs,
    )
    return models.Classifier(tower, head)


def pair_of(settings: Any, num_items: int) -> tuple[Sampler | None, Any]:
    """The sampler and the loss.

    Hard candidates are found by an index that follows the item vectors; slots that they and the labels of the batch
    leave free are filled with uniform draws. Labels of the batch join the candidates of a sampler where the sum of
    expected counts can be stated: where a sampler's depend on its draw, it is returned as it is.
    """
    if settings.loss is None:
        return None, losses.full_softmax
    loss = losses.with_smoothing(LOSSES[settings.loss], settings.smoothing)
    sampler = _sampler(settings, num_items)
    return sampler if settings.item_features is None else for_computed(sampler, num_items), loss


def _sampler(settings: Any, num_items: int) -> Sampler:
    number = min(settings.num_sampled, num_items)
    if settings.hard:
        index = samplers.ivf_index(
            num_centers=max(1, num_items // 256),
            hm_num=min(num_items, max(256, num_items // 10)),
            num_kept=min(num_items, max(256, num_items // 50)),
            codes="rotated",
            near="logit",
        )
        return samplers.grouped(index, num_sampled=number, k=min(settings.hard, num_items))
    if settings.sampler == "in_batch":
        return samplers.in_batch()
    distinct = not settings.in_batch or settings.sampler == "uniform"
    drawn = {**SAMPLERS, **(DISTINCT if distinct else {})}[settings.sampler](number)
    return and_labels(drawn) if settings.in_batch else drawn


def save_towers(
    folder: Path,
    options: Mapping[str, Any],
    found: Sequences,
    model: models.Classifier,
    counts: np.ndarray | None = None,
    *,
    known: Known = NOTHING,
) -> Path:
    """Calls ``save_model`` with the item features added; of user features only the shape is kept."""
    about: dict[str, Any] = {}
    extra: dict[str, np.ndarray] = {}
    if known.items is not None:
        about["item_words"] = known.items.num_words
        extra = {"item_words": known.items.words, "item_numbers": known.items.numbers}
    if known.users is not None:
        about["user_features"] = [known.users.num_words, known.users.numbers.shape[1]]
    return save_model(folder, TASK, options, found, model, counts=counts, about=about, extra=extra)


def known_of(saved: Finished) -> Known:
    """The features of a saved model; users of later histories have no words, and numbers at the mean."""
    items = users = None
    if "item_words" in saved.about:
        items = Features(saved.extra["item_words"], saved.extra["item_numbers"], saved.about["item_words"])
    if "user_features" in saved.about:
        num_words, width = saved.about["user_features"]
        users = Features(np.full((1, 1), -1, np.int32), np.zeros((1, width), np.float32), num_words)
    return Known(items, users)
