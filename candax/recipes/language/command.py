"""`candax language`: which word comes next, by an LSTM and a transformer, and by baselines.

    candax language                                       (the source code of Python's standard library as tokens)
    candax language --dataset FOLDER --seeds 3            (train, valid and test: text, words split at white space)
    candax language --dataset FOLDER --methods lstm full_softmax transformer

Perplexities are of all words, `<unk>` and the end of each line among them, against all words of the vocabulary.

Measured on WikiText-2 (33,278 words; 2,088,628 words to train), validation / test: unigram 968 / 914, Kneser-Ney
bigrams 289 / 267, trigrams 247 / 230, the LSTM with ``--epochs 3`` 134 / 125 (three seeds) after 12 minutes on one
core, with 1.5 GB; with all words as candidates 133 on test after 115 (one seed), and 129 after four passes.
Published for tied LSTMs of 2 x 200: 110.4 on test after 6 passes (PyTorch's example), 107.6 / 101.6 after up to 750
(GluonNLP). A step of 1,120 words takes 145 ms on one idle core and, with all words as candidates, 782, of which the
body takes 105; ``benchmarks/language.py`` measures it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import optax

import candax as cx
from candax import files, models
from candax.alike import made_once
from candax.base import Sampler
from candax.recipes import common
from candax.recipes.common import comparing, finished
from candax.recipes.common.catalog import LOSSES, SAMPLERS, LossName, SamplerName
from candax.recipes.common.study import kept_in
from candax.recipes.language import ngrams
from candax.recipes.language.building import language_model
from candax.recipes.language.files import STDLIB, Text, in_pairs, load
from candax.recipes.language.measures import perplexity
from candax.recipes.language.streams import StreamBatches

MethodName: TypeAlias = Literal["lstm", "full_softmax", "transformer", "transformer_full_softmax"]
# What a method changes in the settings.
METHODS: dict[MethodName, dict[str, Any]] = {
    "lstm": {},
    "full_softmax": {"loss": None},
    "transformer": {"model": "transformer"},
    "transformer_full_softmax": {"model": "transformer", "loss": None},
}
# The LSTM's rate was chosen for the LSTM alone; the transformer's was not tuned.
_OF_TRANSFORMER = {"learning_rate": 3e-3}
# Adam moves every row in every step there, and the LSTM's rate is too high for that (docs/language.md).
_OF_ALL_WORDS = {"learning_rate": 6e-3}
# Settings that choose rows of the table, and on which no model depends.
_CHOOSE = ("methods", "seeds", "split")


@dataclasses.dataclass(frozen=True)
class LanguageSettings(common.Settings):
    """Trains language models; prints a table, writes results.json and language.png."""

    dataset: str = STDLIB
    """python-stdlib, a folder with text files train, valid and test (.txt, plain or compressed), or one text file."""
    min_count: common.Count | None = None
    """Words rarer than this in the training part are read as <unk>; by default 1 if it has <unk> itself, else 2."""
    pairs: common.NonNegative = 0
    """If above 0, pairs of neighbouring words are predicted instead of words, hashed to this many classes."""
    split: Literal["validation", "test"] = "test"
    """Part of the text to measure; validation, on which settings are chosen, is measured in any case."""
    methods: tuple[MethodName, ...] = ("lstm",)
    """What is trained: the LSTM, the transformer, or either with all words as candidates."""
    model: Literal["lstm", "transformer"] = "lstm"
    """Model of those methods that do not set it themselves: lstm and full_softmax."""
    sampler: SamplerName = "unigram"
    """Where candidates come from; unigram draws distinct ones."""
    loss: LossName | None = "css"
    """Loss to train with; None: the full softmax."""
    num_sampled: common.Count = 2048
    """Candidates that a batch shares."""
    power: common.NotNegative = 0.75
    """Exponent of the frequencies by which the sampler unigram draws."""
    dim: common.Count = 256
    """Coordinates of words and states."""
    num_layers: common.Count = 2
    """Layers of the LSTM, or blocks of the transformer."""
    num_heads: common.Count = 4
    """Heads of the transformer's attention."""
    dropout: common.NotNegative = 0.2
    """Probability with which coordinates are dropped in training."""
    context: Literal["full", "truncated"] = "full"
    """What a model knows of the words before a window. full: the LSTM carries its state on, and the transformer reads
    as many words again as the window has; truncated: nothing."""
    num_streams: common.Count = 32
    """Parallel streams: places of the text at which a step reads on."""
    length: common.Count = 35
    """Words of each stream that a step predicts; gradients do not reach further back."""
    epochs: common.Positive = 6.0
    """Passes over the text."""
    learning_rate: common.Positive = 0.012
    """Learning rate of Adam after a warm-up; it then falls linearly to 0. Unless given it is 0.003 of the
    transformer, and 0.006 of full_softmax."""
    seeds: common.Count = 1
    """Trainings of each method, with seeds from --seed on; with several the table shows the lowest and the highest."""
    curve_words: common.Count = 50_000
    """Words of validation behind each point of the curve."""
    checkpoint_every: common.Count = 500
    """Steps between checkpoints."""
    out: common.Out = Path("runs/language")
    """Folder for results.json, language.png and the models."""
    QUICK: ClassVar[Mapping[str, Any]] = {
        "epochs": 0.005, "dim": 16, "num_sampled": 64, "num_streams": 8, "length": 16, "curve_words": 2000,
    }  # fmt: skip
    UNLESS_GIVEN: ClassVar = (_OF_TRANSFORMER, _OF_ALL_WORDS)
    OPTIONS: ClassVar[Sequence[str]] = (
        "model", "dim", "num_layers", "num_heads", "context", "num_streams", "length", "pairs",
    )  # fmt: skip

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        self.expect(bool(self.methods), "one method or more", "methods")
        self.expect(self.pairs == 0 or self.pairs >= 100, "0 or 100 classes of pairs or more", "pairs")
        self.expect(self.dropout < 1, "a dropout below 1", "dropout")
        for name in self.methods:
            fits = _of_method(self, name).model != "transformer" or self.dim % self.num_heads == 0
            self.expect(fits, f"as many coordinates for {name} as the heads divide", "dim", "num_heads")
        self.expect_sampled([_of_method(self, name).loss for name in self.methods])

    def usual(self) -> dict[str, Any]:
        """See ``Settings``."""
        return (_OF_TRANSFORMER if self.model == "transformer" else {}) | super().usual()

    @property
    def read_again(self) -> int:
        """Words before each window that the transformer reads again."""
        return self.length if self.model == "transformer" and self.context == "full" else 0


@common.command
def language(settings: LanguageSettings) -> common.Study:
    """Trains and measures the models and writes the files."""
    text = text_of(settings)
    # What is too short for a window of each stream should fail now, and not after the baselines.
    StreamBatches(text.train, settings.num_streams, settings.length, seed=settings.seed)
    number, measured = text.num_words, functools.partial(_measured, settings, text)
    simple: dict[str, Callable[[], dict[str, float]]] = {
        "unigram": lambda: measured(lambda ids: ngrams.unigram_perplexity(text.train, ids, number)),
        "Kneser-Ney bigrams": lambda: measured(ngrams.KneserNey(text.train, number, order=2).perplexity),
        "Kneser-Ney trigrams": lambda: measured(ngrams.KneserNey(text.train, number, order=3).perplexity),
    }
    trained = functools.partial(_trained, text)
    methods = comparing.rows_of(settings, simple, functools.partial(_of_method, settings), trained)
    title = (
        f"{text.name}: {text.num_words:,} words; {len(text.train):,} words of text to train, "
        f"{len(text.valid):,} to validate, {len(text.test):,} to test"
    )
    return common.Study(
        title,
        methods,
        (
            common.Column("method", "method"),
            common.Column("validation perplexity", "validation", ".1f", spread=True),
            *([common.Column("test perplexity", "test", ".1f", spread=True)] if settings.split == "test" else []),
            common.Column("ms/step", "ms_per_step", ".1f"),
            common.Column("words/s", "words_per_second", ",.0f"),
            common.Column("sec.", "seconds", ".0f"),
        ),
        (
            comparing.progress(
                "perplexity",
                f"perplexity of {min(settings.curve_words, len(text.valid)):,} words of validation",
                simple="Kneser-Ney trigrams",
                of="validation",
                yscale="log",
            ),
        ),
        picture="language.png",
        may_change=("methods", "seeds", "checkpoint_every"),
        data=files.digest_of(text.train, text.valid, text.test),
        names=(text.words,),
        notes=text.notes,
        results=functools.partial(_results, settings, text),
    )


def _of_method(settings: LanguageSettings, name: MethodName) -> LanguageSettings:
    if METHODS[name].get("model") == "transformer":
        settings = settings.unless_given(_OF_TRANSFORMER)
    elif name == "full_softmax" and settings.model == "lstm":
        settings = settings.unless_given(_OF_ALL_WORDS)
    return dataclasses.replace(settings, **METHODS[name])


def text_of(settings: LanguageSettings) -> Text:
    """The text of the settings, its words in pairs where they say so."""
    text = load(settings.dataset, min_count=settings.min_count)
    return in_pairs(text, settings.pairs) if settings.pairs else text


def _parts(settings: LanguageSettings, text: Text) -> dict[str, Any]:
    parts = {"validation": text.valid}
    return parts if settings.split == "validation" else {**parts, "test": text.test}


def _measured(settings: LanguageSettings, text: Text, perplexity_of: Callable[[np.ndarray], float]) -> dict[str, float]:
    return {part: perplexity_of(ids) for part, ids in _parts(settings, text).items()}


def training_of(
    settings: LanguageSettings, text: Text, seed: int
) -> tuple[common.Training, tuple[Sampler | None, Callable[..., Any]]]:
    """How a model is trained and measured; and its sampler and loss."""
    length, context = settings.length, settings.read_again
    batches = StreamBatches(text.train, settings.num_streams, length, context=context, seed=seed)
    num_steps = max(1, round(settings.epochs * batches.batches_per_epoch))
    some = text.valid[: settings.curve_words]

    def measured(model: Any, ids: np.ndarray) -> float:
        return perplexity(model, ids, text.end, length=length, context=context)

    trained = common.Training(
        functools.partial(_make, settings, text, num_steps, seed),
        batches,
        num_steps,
        measure=lambda model: _measured(settings, text, functools.partial(measured, model)),
        on_the_way=lambda model: {"perplexity": measured(model, some)},
        measured_at=(0.05, 0.1, 0.25, 0.5, 0.75, 1.0),
        checkpoint_every=settings.checkpoint_every,
    )
    return trained, _pair(settings, text)


def _trained(text: Text, settings: LanguageSettings, name: MethodName, seed: int) -> dict[str, Any]:
    """Trains a model, or reads it from its folder if it has been trained already."""
    trained, pair = training_of(settings, text, seed)
    # Validation is a part of it: the curve is measured there.
    data = [trained.batches.identity, files.digest_of(text.train, text.valid, text.test)]
    of_model = common.model_folder(settings, name, seed, data, without=(*_CHOOSE, "checkpoint_every"))
    model, figures = trained.train(*pair, f"{name}, seed {seed}", of_model)
    about = {"options": settings.options, "data": text.name}
    path = finished.save(of_model, "language", about, finished.weights_of(model), names={"words": text.words})
    words = settings.num_streams * settings.length * max(1, trained.num_steps - 1)
    speed = words / max(figures["seconds"], 1e-9)
    return {**figures, "words_per_second": speed, **trained.measure(model), **kept_in(settings.out, path)}


def _make(
    settings: LanguageSettings, text: Text, num_steps: int, seed: int, sampler: Sampler | None, loss: Any
) -> tuple[models.Classifier, cx.Optimizer]:
    model = language_model(settings, text.num_words, counts=text.counts, sampler=sampler, loss=loss, seed=seed)
    return model, cx.Optimizer(model, _adam(settings.learning_rate, num_steps), clip_norm=1.0, seed=seed)


@made_once
def _adam(learning_rate: float, num_steps: int) -> optax.GradientTransformation:
    warm_up = max(1, num_steps // 50)
    rate = optax.schedules.join_schedules(
        [
            # A single step to rise in would be one at the rate 0.
            optax.linear_schedule(0.0 if warm_up > 1 else learning_rate, learning_rate, warm_up),
            optax.linear_schedule(learning_rate, 0.0, max(1, num_steps - warm_up)),
        ],
        [warm_up],
    )
    # A row that is drawn for the first time late in training takes a step as large as the rate with b2 = .99, and three
    # times as large with .999, as a row's moments stand still while it is not drawn.
    return optax.adam(rate, b2=0.99)


def _pair(settings: LanguageSettings, text: Text) -> tuple[Sampler | None, Callable[..., Any]]:
    if settings.loss is None:
        return None, common.full_softmax_for(settings.num_streams * settings.length, text.num_words)
    unigram = functools.partial(cx.samplers.unigram, power=settings.power, smoothing=1.0, replacement=False)
    own: dict[SamplerName, Any] = {"unigram": unigram}
    sampler = {**SAMPLERS, **own}[settings.sampler](min(settings.num_sampled, text.num_words))
    return sampler, LOSSES[settings.loss]


def _results(settings: LanguageSettings, text: Text, row: common.Row) -> list[dict[str, Any]]:
    """One row for each part that was measured."""
    about = {"task": "language", "data": text.name, "method": row["method"]}
    about |= {name: row[name] for name in ("seed", "seconds", "words_per_second") if name in row}
    return [{**about, "split": part, "perplexity": row[part]} for part in _parts(settings, text)]
