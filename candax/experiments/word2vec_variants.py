"""What `word2vec_questions` trains: the variants of skip-gram, and which of them each question compares.

All share text, batches, window, dimension, learning rate and seeds; they differ in the loss, in where candidates come
from, and in how many there are.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from candax import losses, samplers
from candax.base import Loss, SampledLogits, Sampler

QuestionName = Literal["k", "draws", "power", "in_batch", "hard", "learned", "correction", "theory"]
REFERENCE = "reference"
# Candidates of every place by itself where they are to be near its own vector.
_NEAR = 8
_KS = (1, 5, 20, 100, 1000)
# Noise words per pair that the full learning rate bears.
_LARGE_K = 20
_DRAWS = (1, 5, 20, 100, 1000)
_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Setting(NamedTuple):
    """Numbers that variants follow.

    Attributes:
        num_words: of the vocabulary.
        num_sampled: candidates that a run of words shares.
        num_groups: runs per batch.
        labels: of all runs but one together, padding included: the in-batch candidates of a run.
        learning_rate: of a single pair.
    """

    num_words: int
    num_sampled: int
    num_groups: int
    labels: int
    learning_rate: float


class Question(NamedTuple):
    """What a question compares.

    Attributes:
        title: of its picture and table.
        variants: by name; the reference first where they have no order.
        values: the number that each stands for on a horizontal axis; None: there is none.
        axis: what the number is.
    """

    title: str
    variants: tuple[str, ...]
    values: tuple[float, ...] | None = None
    axis: str = ""


def _named(name: str, values: tuple[float, ...], reference: float) -> tuple[str, ...]:
    return tuple(REFERENCE if value == reference else f"{name}={value:g}" for value in values)


QUESTIONS: dict[QuestionName, Question] = {
    "k": Question("noise words per pair, k: their weight and number", _named("k", _KS, 5), _KS, "k"),
    "draws": Question("noise words that a run shares and that stand for 5 per pair", (), _DRAWS, "words shared"),
    "power": Question("exponent of the noise", _named("power", _POWERS, 0.75), _POWERS, "exponent"),
    "in_batch": Question(
        "in-batch noise against explicit noise of the same number",
        (REFERENCE, "in-batch", "explicit power=1", "explicit power=.75"),
    ),
    "hard": Question("hard negatives: words whose vectors lie near the input's", (REFERENCE, "lsh", "lsh+unigram")),
    "learned": Question("a learned sampler", (REFERENCE, "learned unigram", "nce", "learned clusters+nce")),
    "correction": Question("corrections for the noise", (REFERENCE, "nce", "css", "sampled softmax")),
}
QUESTIONS["draws"] = QUESTIONS["draws"]._replace(variants=tuple(f"draws={n}" for n in _DRAWS))


def options(variant: str, setting: Setting) -> dict[str, Any]:
    """Of ``candax.recipes.words.word2vec_model``, beside dimension and seed.

    Raises:
        KeyError: for a name that no question has.
    """
    common = {"num_sampled": setting.num_sampled, "learning_rate": setting.learning_rate}
    if variant in _VARIANTS:
        return common | _VARIANTS[variant](setting)
    name, value = variant.split("=")
    return common | _SWEEPS[name](setting, float(value))


def _k(setting: Setting, k: float) -> dict[str, Any]:
    # Noise words move as far as k says, all at once for a batch: at the full rate 100 per pair throw vectors about
    # until they overflow.
    rate = setting.learning_rate * min(1.0, _LARGE_K / k)
    return {"k": k, "num_sampled": max(setting.num_sampled, int(k)), "learning_rate": rate}


def _unigram(setting: Setting, num_sampled: int, power: float) -> Sampler:
    return samplers.unigram(num_sampled, power=power, num_groups=setting.num_groups)


def _in_batch(setting: Setting) -> dict[str, Any]:
    # A run's candidates are the labels of the other runs: its own neighbours are noise no more often than by chance.
    return {"sampler": samplers.in_batch(num_groups=setting.num_groups)}


def _explicit(power: float) -> Callable[[Setting], dict[str, Any]]:
    return lambda setting: {"sampler": _unigram(setting, setting.labels, power)}


def _near() -> Sampler:
    # Sets of one place each, for what is near one vector is near no other. Tables follow by rebuilding alone; before
    # the first time, when all vectors of classes are 0, nothing is found.
    return samplers.lsh(
        "embedding",
        hash=samplers.simhash(),
        num_tables=16,
        num_hashes=12,
        budget=_NEAR,
        update_every=None,
        schedule=samplers.exponential_schedule(10),
    )


def _without_labels(logits: SampledLogits) -> Any:
    # What lies near the input's vector is often its neighbour in the text: as noise that would undo what was learned.
    return losses.negative_sampling(logits, reduction="mean", sample_weight=5, remove_hits=True)


def _hard(setting: Setting) -> dict[str, Any]:
    return {"sampler": _near(), "loss": losses.each_label(_without_labels)}


def _half_hard(setting: Setting) -> dict[str, Any]:
    noise = samplers.unigram(_NEAR, num_groups=None)
    return {"sampler": samplers.with_tail(_near(), noise), "loss": losses.each_label(_without_labels)}


def _corrected(loss: Loss) -> Callable[[Setting], dict[str, Any]]:
    return lambda setting: {
        "sampler": _unigram(setting, setting.num_sampled, 0.75),
        "loss": losses.each_label(loss),
    }


def _nce_loss(setting: Setting) -> Loss:
    def loss(logits: SampledLogits) -> Any:
        return losses.nce(logits, log_normalizer=math.log(setting.num_words))

    return losses.each_label(loss)


def _nce(setting: Setting) -> dict[str, Any]:
    return {"sampler": _unigram(setting, setting.num_sampled, 0.75), "loss": _nce_loss(setting)}


def _learned_clusters(setting: Setting) -> dict[str, Any]:
    # Noise that follows the input must be corrected for: the nearer it comes to the text, the less is there to tell.
    sampler = samplers.learned_clusters(setting.num_sampled, num_groups=setting.num_groups)
    return {"sampler": sampler, "loss": _nce_loss(setting)}


_SWEEPS: dict[str, Callable[[Setting, float], dict[str, Any]]] = {
    "k": _k,
    "draws": lambda setting, number: {"num_sampled": int(number)},
    "power": lambda setting, power: {"power": power},
}
_VARIANTS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    REFERENCE: lambda setting: {},
    "in-batch": _in_batch,
    "explicit power=1": _explicit(1.0),
    "explicit power=.75": _explicit(0.75),
    "lsh": _hard,
    "lsh+unigram": _half_hard,
    "learned unigram": lambda setting: {
        "sampler": samplers.learned_unigram(setting.num_sampled, num_groups=setting.num_groups)
    },
    "learned clusters+nce": _learned_clusters,
    "nce": _nce,
    "css": _corrected(losses.css),
    "sampled softmax": _corrected(losses.sampled_softmax),
}
