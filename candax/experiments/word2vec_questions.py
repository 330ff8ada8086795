"""Open questions on negative sampling, answered by word vectors: what k, noise, hard negatives and corrections change.

    candax experiment word2vec-questions
    candax experiment word2vec-questions TEXT --max-words 3000000 --similarity PAIRS... --analogies QUESTIONS...
    candax experiment word2vec-questions --questions power correction --seeds 0 1 2

Skip-gram is trained once for every variant and seed; variants that several questions compare are trained once:

* k: 1, 5, 20, 100, 1000 noise words a pair, as weight of the noise and as the number that a run of words shares (64 or
  more). Beyond 20 the learning rate falls as 20 / k, or else training diverges: so large k learns slowly.
* draws: 1 to 1000 words shared that stand for 5 a pair: what more draws of the same noise are worth.
* power: the exponent of the noise's frequencies, 0, .25, .5, .75, 1.
* in_batch: the neighbours of other words in the batch as noise, against as many explicit draws.
* hard: for every place up to 8 words whose vectors lie near the word's (LSH), alone and beside 8 of noise;
  labels are taken out. ``hard.png`` shows scores on the way: from when on they help.
* learned: noise whose frequencies are learned from the stream; and a small generator that is trained beside the model
  to propose what looks like a word's neighbours (``learned_clusters``), under NCE, which corrects for it.
* correction: NCE, complementary sum sampling and sampled softmax beside negative sampling, with the same draws.
* theory: with as many coordinates as words, inner products against log(P(w, c) / (P(w) q(c) k)), which is PMI - log k
  for unigram noise, and shifted by the log of the noise else.

Measures: Spearman's rank correlation on files of similarity and the share of right answers on files of analogies, where
given; and always two of the last 2 % of the text, which training does not see: mean reciprocal rank of a true neighbour
among all words, and of a rare one among the rare ones (all but the most frequent words that make up 90 % of the text).
Logits are joined by a multiple of log frequency that other windows choose, for losses differ in how much of it they
hold. Spreads are standard deviations over the seeds, in brackets in the tables: 0.12(3) is .12 +- .03.

Expected on a million words of novels (1 epoch, two seeds; an hour on 2 cores beside other work; the tables are in
docs/word2vec_questions.md): correlation with MEN .18 at k = 5, .15 at 20, -.01 at 1; -.06, .11, .16, .18, .18 with
exponents 0 to 1; in-batch as explicit noise (.19, .18); hard negatives -.02 alone, .15 beside noise; learned clusters
.174 and NCE without them .169, at less than half the speed; SimLex .11 with corrected losses, .08 without; theory:
correlation .998, slope .99.

It writes results.json after every training, a table, and a picture a question. A run that was cut off goes on when it
is started again; a training whose loss is no longer finite is shown as diverged.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import tyro
from rich.console import Console

from candax import data, training
from candax.experiments import setup, word2vec_measures, word2vec_tables, word2vec_theory
from candax.experiments.word2vec import measure
from candax.experiments.word2vec_variants import QUESTIONS, QuestionName, Setting, options
from candax.files import replacing
from candax.training.metrics_log import write_atomically

# Shares of training after which scores are taken.
_CURVE = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
_NUM_GROUPS = 4


@dataclasses.dataclass(frozen=True)
class Word2VecQuestions:
    """Trains word vectors in one way after another; prints tables, writes results.json and a picture a question."""

    text: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Text files, plain or .gz, .bz2, .xz; none: the identifiers of Python's standard library."""
    similarity: tuple[Path, ...] = ()
    """Files of word pairs and judgements."""
    analogies: tuple[Path, ...] = ()
    """Files of analogies in the format of questions-words.txt."""
    questions: tuple[QuestionName, ...] = get_args(QuestionName)
    """Which to answer."""
    seeds: tuple[int, ...] = (0, 1)
    """Of the trainings; more make spreads more certain."""
    max_words: int | None = None
    """Only so many of the first words of the text, held-out ones included."""
    epochs: float = 1
    """Passes over the text."""
    theory_epochs: float = 20
    """Passes of question theory over the small text of its 200 words."""
    dim: int = 100
    """Coordinates of a vector."""
    window: int = 5
    """The most words to either side."""
    min_count: int = 5
    """Rarer words are left out."""
    subsample: float = 1e-3
    """Share of the text from which on words are dropped at random; 0: none are."""
    batch_size: int = 256
    """Places a step, in four runs."""
    num_sampled: int = 64
    """Candidates that a run shares, where the question is not another number."""
    learning_rate: float = 0.025
    """Of a single pair, to start with."""
    restrict: int = 30_000
    """The most frequent words that analogies may use."""
    out: setup.Out = Path("runs/word2vec_questions")
    """Folder for results.json, the pictures, and nearest neighbours."""


# What a results.json must share with a run that goes on with it.
_IDENTITY = ("epochs", "theory_epochs", "dim", "window", "min_count", "subsample", "batch_size", "num_sampled",
             "learning_rate", "restrict")  # fmt: skip


def word2vec_questions(settings: Word2VecQuestions) -> dict[str, Any]:
    """Trains what is missing, writes everything, and returns what results.json holds."""
    _check(settings)
    for path in (*settings.similarity, *settings.analogies):
        path.open("rb").close()  # what cannot be read should fail now
    whole = data.text_words(settings.text, min_count=settings.min_count)
    text, pairs = word2vec_measures.split(
        whole, settings.max_words, min_count=settings.min_count, window=settings.window, subsample=settings.subsample
    )
    out = setup.writable_folder(settings.out)
    console = Console()
    about = f"{text.name}: {text.total:,} words, {text.num_words:,} of them different"
    console.print(f"{about}; {len(pairs.words):,} pairs held out")
    results = _begun(settings, text, out)
    results["about"] = about
    for question in settings.questions:
        for seed in settings.seeds:
            if question == "theory":
                _theory(settings, text, seed, results, out)
                continue
            for variant in QUESTIONS[question].variants:
                of_variant = results["runs"].setdefault(variant, {})
                if str(seed) not in of_variant:
                    console.print(f"{question}: {variant}, seed {seed}")
                    of_variant[str(seed)] = _train(settings, text, pairs, variant, seed, out)
                    _write(results, out)
    if "correction" in settings.questions:
        results["overlap"] = _overlaps(QUESTIONS["correction"].variants, settings.seeds, out)
        _write(results, out)
    word2vec_tables.show(results, settings.questions, settings.seeds, out, console)
    return results


def _train(
    settings: Word2VecQuestions, text: data.Words, pairs: word2vec_measures.Pairs, variant: str, seed: int, out: Path
) -> dict[str, Any]:
    """One training: seconds, scores, the scores on the way, and geometry, as JSON values."""
    rare = word2vec_measures.rare_words(text)
    everything = np.ones(text.num_words, bool)

    def scores(inputs: np.ndarray, outputs: np.ndarray) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for name, among in (("mrr", everything), ("mrr_rare", rare)):
            rank = word2vec_measures.rank(inputs, outputs, pairs, among, text.counts)
            found |= {name: _finite(rank.mrr), f"{name}_power": _finite(rank.power)}
        vectors = data.WordVectors(text.words, np.nan_to_num(inputs))
        files = measure(vectors, settings.similarity, settings.analogies, settings.restrict)
        return found | {name: result.get("spearman", result.get("accuracy")) for name, result in files.items()}

    def evaluate(state: training.TrainState) -> dict[str, Any]:
        # On the way to divergence squares overflow; that is found out below.
        with np.errstate(over="ignore", invalid="ignore"):
            return scores(*(np.array(state.tables[name]) for name in ("encoder.words", "class_vectors")))

    batches = training.word2vec_batches(
        text,
        batch_size=settings.batch_size,
        seed=seed,
        window=settings.window,
        subsample=settings.subsample,
        run_length=settings.batch_size // _NUM_GROUPS,
    )
    num_steps = max(1, round(settings.epochs * batches.batches_per_epoch))
    labels = (settings.batch_size - batches.run_length) * 2 * settings.window
    setting = Setting(text.num_words, settings.num_sampled, _NUM_GROUPS, labels, settings.learning_rate)
    program, _ = training.word2vec_program(batches, num_steps, dim=settings.dim, seed=seed, **options(variant, setting))
    state = program.init(seed)
    if any(map(program.schedule, range(num_steps))):
        state = program.refresh(state)  # compiled now and not on the clock
    points = {max(1, round(share * num_steps)) for share in _CURVE}
    try:
        state, records = training.fit_program(
            program,
            state,
            batches,
            num_steps=num_steps,
            log_every=200,
            evaluate=evaluate,
            evaluate_at=points.__contains__,
            description="words",
            unit=("words", text.total / (batches.batches_per_epoch * settings.batch_size)),
        )
    except FloatingPointError as error:
        return {"diverged": str(error)}
    inputs, outputs = (np.array(state.tables[name]) for name in ("encoder.words", "class_vectors"))
    curve = [record for record in records if "mrr" in record]
    if curve[-1]["mrr"] is None:
        return {"diverged": "a vector is no longer finite"}
    with replacing(_neighbours(out, variant, seed)) as file:
        np.save(file, word2vec_measures.nearest(inputs))
    seconds = curve[-1]["seconds"]
    return {
        "seconds": seconds,
        "words_per_second": text.total * settings.epochs / seconds if seconds else None,
        "steps": num_steps,
        "loss": next(record["loss"] for record in reversed(records) if "loss" in record),
        "scores": {name: number for name, number in curve[-1].items() if name not in ("step", "seconds")},
        "curve": [{**record, "words": record["step"] / num_steps * text.total * settings.epochs} for record in curve],
        "geometry": {
            name: _finite(number)
            for name, number in word2vec_measures.geometry(inputs, outputs, text.counts)._asdict().items()
        },
    }


def _theory(settings: Word2VecQuestions, text: data.Words, seed: int, results: dict[str, Any], out: Path) -> None:
    small = None
    for case, (k, power) in word2vec_theory.CASES.items():
        of_case = results["theory"].setdefault(case, {})
        if str(seed) not in of_case:
            small = word2vec_theory.small_text(text) if small is None else small
            of_case[str(seed)] = word2vec_theory.theory(
                small, k=k, power=power, epochs=settings.theory_epochs, window=settings.window, seed=seed
            )
            _write(results, out)


def _overlaps(variants: tuple[str, ...], seeds: tuple[int, ...], out: Path) -> dict[str, float]:
    """Of each variant the share of nearest neighbours that it has in common with the reference of another seed."""
    lists = {
        (variant, seed): np.load(path)
        for variant in variants
        for seed in seeds
        if (path := _neighbours(out, variant, seed)).exists()
    }
    return {
        variant: float(np.mean(shares))
        for variant in variants
        if (
            shares := [
                word2vec_measures.overlap(lists[variant, a], lists[variants[0], b])
                for a in seeds
                for b in seeds
                if (variant, a) in lists and (variants[0], b) in lists and (a != b or len(seeds) == 1)
            ]
        )
    }


def _neighbours(out: Path, variant: str, seed: int) -> Path:
    return out / f"nearest-{variant.replace(' ', '-')}-{seed}.npy"


def _begun(settings: Word2VecQuestions, text: data.Words, out: Path) -> dict[str, Any]:
    """What results.json holds already, or the beginning of one."""
    values: dict[str, Any] = {name: getattr(settings, name) for name in _IDENTITY}
    values |= {"text": text.digest, "files": [path.name for path in (*settings.similarity, *settings.analogies)]}
    path = out / "results.json"
    if not path.exists():
        return {"settings": values, "runs": {}, "theory": {}}
    results: dict[str, Any] = json.loads(path.read_text())
    if results["settings"] != values:
        other = [name for name, value in values.items() if results["settings"].get(name) != value]
        raise ValueError(f"{path} holds results of other settings: {', '.join(other)}. Choose another --out.")
    return results


def _write(results: dict[str, Any], out: Path) -> None:
    write_atomically(out / "results.json", json.dumps(results, indent=1) + "\n")


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _check(settings: Word2VecQuestions) -> None:
    for name in ("dim", "window", "min_count", "num_sampled"):
        if getattr(settings, name) < 1:
            raise ValueError(f"expected --{name.replace('_', '-')} of 1 or more, got {getattr(settings, name)}.")
    for name in ("learning_rate", "epochs", "theory_epochs"):
        if not 0 < getattr(settings, name) < math.inf:
            raise ValueError(f"expected --{name.replace('_', '-')} above 0, got {getattr(settings, name)}.")
    if settings.batch_size < 2 * _NUM_GROUPS or settings.batch_size % _NUM_GROUPS:
        raise ValueError(f"expected --batch-size of 8 or more, a multiple of 4, got {settings.batch_size}.")
    if not settings.questions or not settings.seeds or min(settings.seeds) < 0:
        raise ValueError("expected one or more of --questions, and of --seeds, which are numbers of 0 or more.")
    if settings.max_words is not None and settings.max_words < 1:
        raise ValueError(f"expected --max-words of 1 or more, got {settings.max_words}.")
    if not 0 <= settings.subsample < math.inf:
        raise ValueError(f"expected --subsample of 0 or more, got {settings.subsample}.")


if __name__ == "__main__":
    word2vec_questions(tyro.cli(Word2VecQuestions))
