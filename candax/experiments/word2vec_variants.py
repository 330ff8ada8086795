"""What `word2vec_questions` trains: the variants of skip-gram, and which of them each question compares.

All share text, batches, window, dimension, learning rate and seeds; they differ in the loss, in where candidates come
from, and in how many there are.
"""

from typing import Any, Literal, NamedTuple

from candax import losses, samplers
from candax.base import Loss, SampledLogits, Sampler
from candax.recipes.common.catalog import LOSSES

QuestionName = Literal["k", "draws", "power", "in_batch", "hard", "learned", "correction", "theory"]
REFERENCE = "reference"
# Candidates of each place, where every place has its own, near its vector.
_NEAR = 8
_KS = (1, 5, 20, 100, 1000)
# The most noise words per pair that the full learning rate can take.
_LARGE_K = 20
_DRAWS = (1, 5, 20, 100, 1000)
_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Setting(NamedTuple):
    """Numbers that variants depend on."""

    num_sampled: int  # candidates that a run of words shares
    num_groups: int  # runs per batch
    labels: int  # number in all runs but one, padding included: the in-batch candidates of a run
    learning_rate: float  # of a single pair


class Question(NamedTuple):
    """What a question compares."""

    title: str
    variants: tuple[str, ...]  # the reference first where they have no order
    values: tuple[float, ...] | None = None  # where each variant stands on a horizontal axis
    axis: str = ""


def _named(name: str, values: tuple[float, ...], reference: float | None = None) -> tuple[str, ...]:
    return tuple(REFERENCE if value == reference else f"{name}={value:g}" for value in values)


QUESTIONS: dict[QuestionName, Question] = {
    "k": Question("noise words per pair, k: their weight and number", _named("k", _KS, 5), _KS, "k"),
    "draws": Question(
        "noise words that a run shares and that stand for 5 per pair", _named("draws", _DRAWS), _DRAWS, "words shared"
    ),
    "power": Question("exponent of the noise", _named("power", _POWERS, 0.75), _POWERS, "exponent"),
    "in_batch": Question(
        "in-batch noise against explicit noise of the same number",
        (REFERENCE, "in-batch", "explicit power=1", "explicit power=.75"),
    ),
    "hard": Question("hard negatives: words whose vectors lie near the input's", (REFERENCE, "lsh", "lsh+unigram")),
    "learned": Question("a learned sampler", (REFERENCE, "learned unigram", "nce", "learned clusters+nce")),
    "correction": Question("corrections for the noise", (REFERENCE, "nce", "css", "sampled softmax")),
}


def options(variant: str, setting: Setting) -> dict[str, Any]:
    """Options of ``candax.recipes.words.word2vec_model``, in addition to dimension and seed.

    Raises:
        KeyError: for a name that no question has.
    """
    number, groups, rate = setting.num_sampled, setting.num_groups, setting.learning_rate

    def unigram(number: int, power: float = 0.75) -> dict[str, Any]:
        return {"sampler": samplers.unigram(number, power=power, num_groups=groups)}

    def corrected(loss: Loss) -> dict[str, Any]:
        return {"loss": losses.each_label(loss)}

    found: dict[str, dict[str, Any]] = {
        REFERENCE: {},
        # Noise words move as far as k says, all at once for a batch: at the full rate 100 per pair throw vectors about
        # until they overflow.
        **{
            f"k={k}": {"k": k, "num_sampled": max(number, k), "learning_rate": rate * min(1.0, _LARGE_K / k)}
            for k in _KS
        },
        **{f"draws={draws}": {"num_sampled": draws} for draws in _DRAWS},
        **{f"power={power:g}": {"power": power} for power in _POWERS},
        # The candidates of a run are the labels of the others: its own neighbours are noise only by chance.
        "in-batch": {"sampler": samplers.in_batch(num_groups=groups)},
        "explicit power=1": unigram(setting.labels, 1.0),
        "explicit power=.75": unigram(setting.labels),
        "lsh": {"sampler": _near(), **corrected(_without_labels)},
        "lsh+unigram": {
            "sampler": samplers.with_tail(_near(), samplers.unigram(_NEAR, num_groups=None)),
            **corrected(_without_labels),
        },
        "learned unigram": {"sampler": samplers.learned_unigram(number, num_groups=groups)},
        # Noise that follows the input must be corrected for: the nearer it comes to the text, the less it teaches.
        "learned clusters+nce": {
            "sampler": samplers.learned_clusters(number, num_groups=groups),
            **corrected(LOSSES["nce"]),
        },
        "nce": {**unigram(number), **corrected(LOSSES["nce"])},
        "css": {**unigram(number), **corrected(losses.css)},
        "sampled softmax": {**unigram(number), **corrected(losses.sampled_softmax)},
    }
    return {"num_sampled": number, "learning_rate": rate, **found[variant]}


def _near() -> Sampler:
    # Sets of one place each, as what is near one vector is near no other. Tables follow the vectors only when rebuilt;
    # before the first time, when all vectors of classes are 0, nothing is found.
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
