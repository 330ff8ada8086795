"""`candax word2vec`, `neighbors` and `analogy`: word vectors from text files, and questions to them."""

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar, Literal

import optax
import tyro
from rich.console import Console

from candax import data, losses
from candax.recipes import common
from candax.recipes.common.catalog import LOSSES, SAMPLERS, LossName, SamplerName
from candax.recipes.words.scores import check_names, file_scores, read_analogies, read_similarity
from candax.recipes.words.training import train_word2vec
from candax.training.metrics_log import write_atomically

_OPTIMIZERS = {"sgd": None, "adagrad": optax.adagrad, "adam": optax.adam}


@dataclasses.dataclass(frozen=True)
class Word2Vec(common.Settings):
    """Trains word vectors on text files as word2vec does; an interrupted run goes on with the same settings."""

    text: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Text files of any size, plain or .gz, .bz2, .xz; none: the identifiers of Python's standard library."""
    out: common.Out = Path("runs/word2vec")
    """Folder of the run: settings.json, metrics.jsonl, checkpoints/, vectors.*, results.json."""
    direction: Literal["skipgram", "cbow"] = "skipgram"
    """skipgram: a word predicts its neighbours; cbow: the mean of its neighbours predicts the word."""
    dim: common.Count = 100
    """Coordinates of a vector."""
    window: common.Count = 5
    """The most neighbours on either side; each place in the text draws its own number from 1 to this."""
    min_count: common.Count = 5
    """Words that occur less often are left out."""
    keep_case: bool = False
    """Tell capitals from small letters."""
    subsample: common.NotNegative = 1e-3
    """Words that make up more than this share of the text are dropped at random; 0: none are."""
    k: common.Positive = 5
    """Noise words per pair, with the loss negative_sampling."""
    power: common.NotNegative = 0.75
    """Exponent of the frequencies by which the sampler unigram draws noise words."""
    num_sampled: common.Count = 32
    """Candidates that 32 words share; with other samplers than unigram, the whole batch shares them."""
    sampler: SamplerName = "unigram"
    """Where candidates come from."""
    loss: LossName = "negative_sampling"
    """Loss on the candidates."""
    optimizer: Literal["sgd", "adagrad", "adam"] = "sgd"
    """Optimizer, which updates only the rows of vectors that a step uses."""
    learning_rate: common.Positive = 0.035
    """Learning rate at the start, which falls linearly. With sgd it is that of a single pair of words."""
    epochs: common.Positive = 5
    """Passes over the text."""
    batch_size: common.Count | None = None
    """Places in the text per step; None: 1024, fewer for short texts."""
    similarity: tuple[Path, ...] = ()
    """Files of word pairs and judgements, to measure the vectors with."""
    analogies: tuple[Path, ...] = ()
    """Files of analogies in the format of questions-words.txt, to measure the vectors with."""
    restrict: int = 30_000
    """Analogies may use only this many of the most frequent words."""
    formats: tuple[Literal["txt", "bin", "safetensors"], ...] = ("txt", "bin", "safetensors")
    """Formats in which the vectors are written."""
    checkpoint_every: common.Count = 5000
    """Steps between checkpoints."""
    QUICK: ClassVar = {"epochs": 0.1, "dim": 16}

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        self.expect(bool(self.formats), "one format or more", "formats")
        self.expect(self.restrict >= 4, "--restrict of 4 or more", "restrict")
        check_names([*self.similarity, *self.analogies])


@dataclasses.dataclass(frozen=True)
class Neighbors:
    """Prints the words whose vectors have the largest cosine with that of each word."""

    vectors: tyro.conf.Positional[Path]
    """File of word vectors: .txt, .bin or .safetensors."""
    words: tyro.conf.Positional[tuple[str, ...]]
    """Words to find neighbours of."""
    number: int = 10
    """Number of neighbours of each word."""


@dataclasses.dataclass(frozen=True)
class Analogy:
    """Prints the best words for "A is to B as C is to ..."."""

    vectors: tyro.conf.Positional[Path]
    """File of word vectors: .txt, .bin or .safetensors."""
    a: tyro.conf.Positional[str]
    """The word A."""
    b: tyro.conf.Positional[str]
    """The word B, which stands to A as the answer stands to C."""
    c: tyro.conf.Positional[str]
    """The word C."""
    number: int = 10
    """Words to print."""


# Changing these does not change what a run computes, so a run may go on under other values of them.
_NO_PART_OF_IDENTITY = ("quick", "text", "out", "similarity", "analogies", "restrict", "formats", "checkpoint_every")
# Settings that `train_word2vec` has too, under the same names.
_AS_THEY_ARE = (
    *("epochs", "direction", "window", "subsample", "batch_size", "seed", "checkpoint_every"),
    *("dim", "k", "num_sampled", "power", "learning_rate"),
)


def word2vec(settings: Word2Vec) -> dict[str, Any]:
    """Trains, writes the vectors and what was measured, and returns the latter."""
    settings = settings.ready()
    # What cannot be read should fail now and not after training.
    for path in settings.similarity:
        read_similarity(path)
    for path in settings.analogies:
        read_analogies(path)
    text = data.text_words(settings.text, min_count=settings.min_count, keep_case=settings.keep_case)
    out = common.writable_folder(settings.out)
    console = Console()
    console.print(f"{text.name}: {text.total:,} words, {text.num_words:,} of them different")
    values = dataclasses.asdict(settings)
    trained = train_word2vec(
        text,
        **{name: values[name] for name in _AS_THEY_ARE},
        folder=out,
        identity={name: value for name, value in values.items() if name not in _NO_PART_OF_IDENTITY},
        on_start=lambda: write_atomically(out / "settings.json", json.dumps(values, indent=1, default=str) + "\n"),
        sampler=None if settings.sampler == "unigram" else SAMPLERS[settings.sampler](settings.num_sampled),
        loss=None if settings.loss == "negative_sampling" else losses.each_label(LOSSES[settings.loss]),
        optimizer=_OPTIMIZERS[settings.optimizer],
    )
    for ending in settings.formats:
        trained.vectors.save(out / f"vectors.{ending}")
    seconds = trained.records[-1]["seconds"] if trained.records else 0.0
    result: dict[str, Any] = {
        "words": text.total,
        "different_words": text.num_words,
        "steps": trained.steps,
        "seconds": seconds,
        "words_per_second": text.total * settings.epochs / seconds if seconds else None,
        "loss": trained.records[-1]["loss"] if trained.records else None,
        **file_scores(trained.vectors, settings.similarity, settings.analogies, settings.restrict),
    }
    write_atomically(out / "results.json", json.dumps(result, indent=1) + "\n")
    console.print_json(data=result)
    return result


def neighbors(settings: Neighbors) -> dict[str, list[tuple[str, float]]]:
    """Prints the neighbours of each word, and returns them."""
    if not settings.words:
        raise ValueError("expected one word or more after the file of vectors, got none.")
    vectors = data.WordVectors.load(settings.vectors)
    found = {word: vectors.neighbors(word, settings.number) for word in settings.words}
    for word, near in found.items():
        print(f"{word}: {_listing(near)}")
    return found


def analogy(settings: Analogy) -> list[tuple[str, float]]:
    """Prints the best words, and returns them."""
    found = data.WordVectors.load(settings.vectors).analogy(settings.a, settings.b, settings.c, settings.number)
    print(f"{settings.a} : {settings.b} = {settings.c} : {_listing(found)}")
    return found


def _listing(found: list[tuple[str, float]]) -> str:
    return ", ".join(f"{word} {cosine:.2f}" for word, cosine in found)
