"""`candax word2vec`, `neighbors` and `analogy`: word vectors from text files, and questions to them.

    candax word2vec                                                              (identifiers of the standard library)
    candax word2vec TEXT --similarity PAIRS ... --analogies QUESTIONS --seeds 3

Expected on 99 English novels (11.4 million words, 35,455 of them different), means of three seeds: rank correlations of
.591 on MEN, .287 on SimLex-999 and .468 on WordSim-353, .329 of the analogies right (gensim .570, .298, .487 and .324;
PPMI vectors, which need no training, .584, .206, .377 and .252), with some 1.1 million words per second on two cores,
or 50 s for the five epochs. The standard library's 1.4 million words take a minute in all and .7 GB.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import optax
import tyro

from candax import data, losses
from candax.files import digest_of
from candax.recipes import common
from candax.recipes.common import comparing
from candax.recipes.common.catalog import LOSSES, SAMPLERS, LossName, SamplerName
from candax.recipes.common.study import kept_in
from candax.recipes.common.training import check_begun
from candax.recipes.words.baselines import ppmi_vectors
from candax.recipes.words.scores import check_names, file_scores, read_analogies, read_similarity
from candax.recipes.words.threads import one_thread
from candax.recipes.words.training import steps_of, train_word2vec, word2vec_batches
from candax.training.metrics_log import write_atomically

_SIMPLE = "PPMI, SVD"
_ABOUT = ("method", "seed", "seconds", "words_per_second", "steps", "loss")
_OPTIMIZERS = {"sgd": None, "adagrad": optax.adagrad, "adam": optax.adam}


@dataclasses.dataclass(frozen=True)
class Word2Vec(common.Settings):
    """Trains word vectors on text files as word2vec does; an interrupted run goes on with the same settings."""

    text: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Text files of any size, plain or .gz, .bz2, .xz; none: the identifiers of Python's standard library."""
    out: common.Out = Path("runs/word2vec")
    """Folder of the run: settings.json, metrics.jsonl, checkpoints/, vectors.*, results.json, word2vec.png."""
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
    seeds: common.Count = 1
    """Trainings, with seeds from --seed on, those after the first in folders seed-N; the table then shows the lowest
    and the highest."""
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
_NO_PART_OF_IDENTITY = (
    "quick", "text", "out", "similarity", "analogies", "restrict", "formats", "checkpoint_every", "seeds",
)  # fmt: skip
# And these do not change the rows of the table either.
_OF_NO_ROW = ("quick", "text", "checkpoint_every", "seeds")
# Settings that `train_word2vec` has too, under the same names.
_AS_THEY_ARE = (
    *("epochs", "direction", "window", "subsample", "batch_size", "checkpoint_every"),
    *("dim", "k", "num_sampled", "power", "learning_rate", "seed"),
)
# With these as they are a step is so small that one thread is as quick as two.
_OF_SMALL_STEPS = ("sampler", "num_sampled", "batch_size")
_OF_BATCHES = ("batch_size", "seed", "direction", "window", "subsample")
_SCORE = "score of "


@common.command
def word2vec(settings: Word2Vec) -> common.Study:
    """Trains, and writes the vectors, the table and the picture."""
    # What cannot be read should fail now and not after training.
    for path in settings.similarity:
        read_similarity(path)
    for path in settings.analogies:
        read_analogies(path)
    if all(getattr(settings, name) == getattr(Word2Vec, name) for name in _OF_SMALL_STEPS):
        one_thread(settings.dim)
    text = data.text_words(settings.text, min_count=settings.min_count, keep_case=settings.keep_case)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    # Where each training keeps its vectors: the first in the run's own folder.
    folders = [settings.out, *(settings.out / f"seed-{seed}" for seed in seeds[1:])]
    methods = []
    for seed, folder in zip(seeds, folders, strict=True):
        of = dataclasses.replace(settings, seed=seed)
        check_begun(folder, functools.partial(_identity, of, text))
        methods.append(comparing.row({"method": of.direction, "seed": seed}, _trained, of, text, folder))
    measured = [*settings.similarity, *settings.analogies]
    if measured:
        methods.insert(0, comparing.row({"method": _SIMPLE}, _untrained, settings, text))
    return common.Study(
        f"{text.name}: {text.total:,} words, {text.num_words:,} of them different",
        methods,
        (
            common.Column("method", "method"),
            *(common.Column(path.stem, f"{_SCORE}{path.stem}", ".3f", spread=True) for path in measured),
            *([common.Column("mean similarity", "mean", ".3f", spread=True)] if len(settings.similarity) > 1 else []),
            common.Column("loss", "loss", ".4f"),
            common.Column("words/s", "words_per_second", ",.0f"),
            common.Column("sec.", "seconds", ".0f"),
        ),
        (common.Panel(common.curves("seconds", "loss"), {"xlabel": "training time in seconds", "ylabel": "loss"}),),
        caption="Spearman's rank correlation with judgements of similarity, and the share of analogies answered right."
        if measured
        else None,
        picture="word2vec.png",
        may_change=_OF_NO_ROW,
        results=functools.partial(_results, text),
        data=digest_of(np.frombuffer(text.digest.encode(), np.uint8), *(np.fromfile(f, np.uint8) for f in measured)),
    )


def _told(settings: Word2Vec) -> dict[str, Any]:
    """What must be the same where a run goes on."""
    return {name: value for name, value in dataclasses.asdict(settings).items() if name not in _NO_PART_OF_IDENTITY}


def _identity(settings: Word2Vec, text: data.Words) -> dict[str, Any]:
    """All by which a checkpoint of this training knows it."""
    batches = word2vec_batches(text, **{name: getattr(settings, name) for name in _OF_BATCHES})
    return {**batches.identity, "num_steps": steps_of(batches, settings.epochs), **_told(settings)}


def _trained(settings: Word2Vec, text: data.Words, folder: Path) -> dict[str, Any]:
    """Trains with one seed, or goes on, and writes the vectors into its folder."""
    values = dataclasses.asdict(settings)
    trained = train_word2vec(
        text,
        **{name: values[name] for name in _AS_THEY_ARE},
        folder=common.writable_folder(folder),
        identity=_told(settings),
        on_start=lambda: write_atomically(folder / "settings.json", json.dumps(values, indent=1, default=str) + "\n"),
        sampler=None if settings.sampler == "unigram" else SAMPLERS[settings.sampler](settings.num_sampled),
        loss=None if settings.loss == "negative_sampling" else losses.each_label(LOSSES[settings.loss]),
        optimizer=_OPTIMIZERS[settings.optimizer],
    )
    files = [folder / f"vectors.{ending}" for ending in settings.formats]
    for file in files:
        trained.vectors.save(file)
    return {
        "steps": trained.steps,
        "seconds": trained.seconds,
        "words_per_second": text.total * settings.epochs / max(trained.seconds, 1e-9),
        "loss": trained.records[-1]["loss"] if trained.records else None,  # the log may be lost
        "curve": {name: [record[name] for record in trained.records] for name in ("step", "seconds", "loss")},
        **_scored(settings, trained.vectors),
        **kept_in(settings.out, *files),
    }


def _untrained(settings: Word2Vec, text: data.Words) -> dict[str, Any]:
    return _scored(settings, ppmi_vectors(text, dim=settings.dim, window=settings.window))


def _scored(settings: Word2Vec, vectors: data.WordVectors) -> dict[str, Any]:
    """The scores on each file, whole for ``results.json`` and as figures for the table."""
    scores = file_scores(vectors, settings.similarity, settings.analogies, settings.restrict)
    figures = {name: of["spearman" if "spearman" in of else "accuracy"] for name, of in scores.items()}
    found = [figures[path.stem] for path in settings.similarity if figures[path.stem] is not None]
    mean = float(np.mean(found)) if found else None
    return {"scores": scores, "mean": mean, **{f"{_SCORE}{name}": figure for name, figure in figures.items()}}


def _results(text: data.Words, row: common.Row) -> list[dict[str, Any]]:
    """One row for each file that the vectors were measured with, or one in all."""
    about = {
        "task": "words",
        "data": text.name,
        "split": "test",
        "words": text.total,
        "different_words": text.num_words,
    }
    about |= {name: row[name] for name in _ABOUT if name in row}
    return [{**about, "file": name, **score} for name, score in row["scores"].items()] or [about]


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
