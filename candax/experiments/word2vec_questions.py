"""Open questions on negative sampling, answered by word vectors: what k, noise, hard negatives and corrections change.

    candax experiment word2vec-questions
    candax experiment word2vec-questions TEXT --max-words 3000000 --similarity PAIRS... --analogies QUESTIONS...
    candax experiment word2vec-questions --questions power correction --seeds 3

Skip-gram is trained once for every variant and seed; variants that several questions compare are trained once:

* k: 1, 5, 20, 100, 1000 noise words per pair, as weight of the noise and as the number that a run of words shares (64
  or more). Beyond 20 the learning rate falls as 20 / k, or else training diverges: so a large k learns slowly.
* draws: 1 to 1000 shared noise words that stand for 5 per pair: what more draws of the same noise are worth.
* power: the exponent of the noise's frequencies, 0, .25, .5, .75, 1.
* in_batch: the neighbours of other words in the batch as noise, against as many explicit draws.
* hard: for every place up to 8 words whose vectors lie near the word's (LSH), alone and beside 8 noise words;
  labels are taken out. ``hard.png`` shows scores during training, and so from when on these words help.
* learned: noise whose frequencies are learned from the stream; and a small generator that is trained beside the model
  to propose what looks like a word's neighbours (``learned_clusters``), under NCE, which corrects for it.
* correction: NCE, complementary sum sampling and sampled softmax beside negative sampling, with the same draws.
* theory: with as many coordinates as words, inner products against log(P(w, c) / (P(w) q(c) k)), which is PMI - log k
  for unigram noise, and shifted by the log of the noise otherwise.

Measures: Spearman's rank correlation on files of similarity and the share of right answers on files of analogies, where
given; and always two on the last 2 % of the text, which training does not see: mean reciprocal rank of a true neighbour
among all words, and of a rare one among the rare ones (all but the most frequent words that make up 90 % of the text).
A multiple of the log frequency, chosen on other windows, is added to the logits, as losses differ in how much of it
their logits hold. Spreads are standard deviations over the seeds, in brackets in the tables: 0.12(3) is .12 +- .03.

Expected on a million words of novels (1 epoch, two seeds; an hour on 2 cores beside other work; the tables are in
docs/word2vec_questions.md): correlation with MEN .18 at k = 5, .15 at 20, -.01 at 1; -.06, .11, .16, .18, .18 with
exponents 0 to 1; in-batch as explicit noise (.19, .18); hard negatives -.02 alone, .15 beside noise; learned clusters
.174 and NCE without them .169, at less than half the speed; SimLex .11 with corrected losses, .08 without; theory:
correlation .998, slope .99.

It writes results.json after every training, a table, and a picture for each question. A run that was cut off goes on
when it is started again; a training whose loss is no longer finite is counted as diverged.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import tyro
from flax import nnx

from candax import data
from candax.diagnostics.report import with_error
from candax.experiments import word2vec_theory
from candax.experiments.word2vec_variants import QUESTIONS, REFERENCE, Question, QuestionName, Setting, options
from candax.files import digest_of
from candax.recipes import common, words
from candax.recipes.common import report
from candax.recipes.common.study import kept_in
from candax.recipes.words import measures
from candax.recipes.words.scores import check_names, file_scores
from candax.recipes.words.training import vectors_of

# Shares of training after which scores are taken.
_CURVE = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
_NUM_GROUPS = 4
_GEOMETRY = {
    "mrr_power": "frequency missing in logits",
    "input_length": "length with frequency",
    "output_length": "length of classes",
    "mean_cosine": "mean cosine",
}

# Names that figures and labels of a row have, and ends of those that are made of them.
_TAKEN = {*_GEOMETRY, *measures.Geometry._fields, "mrr", "mrr_rare", "mrr_power", "mrr_rare_power", "method", "seed"}
_TAKEN |= {"steps", "seconds", "ms_per_step", "curve", "step", "epoch", "loss", "diverged", "models", "place"}
_TAKEN |= {"words_per_second", "shared"}
_ENDS = ("_by_seed", "_over_seeds")


@dataclasses.dataclass(frozen=True)
class Word2VecQuestions(common.Settings):
    """Trains word vectors in one way after another; prints tables, writes results.json and a picture per question."""

    text: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Text files, plain or .gz, .bz2, .xz; none: the identifiers of Python's standard library."""
    similarity: tuple[Path, ...] = ()
    """Files of word pairs and judgements."""
    analogies: tuple[Path, ...] = ()
    """Files of analogies in the format of questions-words.txt."""
    questions: tuple[QuestionName, ...] = get_args(QuestionName)
    """Questions to answer."""
    seeds: common.Count = 2
    """Trainings of each variant, with seeds from --seed on; more make spreads more certain."""
    max_words: common.Count | None = None
    """Use only this many of the first words of the text, held-out ones included."""
    epochs: common.Positive = 1
    """Passes over the text."""
    theory_epochs: common.Positive = 20
    """Passes over the text for the question theory, a small text of only the 200 most frequent words."""
    dim: common.Count = 100
    """Coordinates of a vector."""
    window: common.Count = 5
    """The most neighbours of a word on either side."""
    min_count: common.Count = 5
    """Words that occur less often are left out."""
    subsample: common.NotNegative = 1e-3
    """Words that make up more than this share of the text are dropped at random; 0: none are."""
    batch_size: common.Count = 256
    """Places in the text per step, in four runs."""
    num_sampled: common.Count = 64
    """Candidates that a run shares, unless a question varies their number."""
    learning_rate: common.Positive = 0.025
    """Learning rate of a single pair of words, at the start."""
    restrict: int = 30_000
    """Analogies may use only this many of the most frequent words."""
    QUICK: ClassVar = {"max_words": 30_000, "dim": 8, "seeds": 1, "questions": ("correction",)}

    def check(self) -> None:
        """See ``Settings``; scores on files stand beside other figures, under the names of the files."""
        super().check()
        runs = self.batch_size >= 2 * _NUM_GROUPS and self.batch_size % _NUM_GROUPS == 0
        self.expect(runs, "--batch-size of 8 or more, a multiple of 4", "batch_size")
        self.expect(bool(self.questions), "one question or more", "questions")
        self.expect(self.restrict >= 4, "--restrict of 4 or more", "restrict")
        check_names([*self.similarity, *self.analogies])
        for path in (*self.similarity, *self.analogies):
            if path.stem in _TAKEN or path.stem.endswith(_ENDS):
                raise ValueError(f"expected files of scores with names that no figure has, got {path}: rename it.")


def word2vec_questions(settings: Word2VecQuestions) -> list[common.Row]:
    """Trains what is missing, writes everything, and returns the rows of variants."""
    settings = settings.ready()
    for path in (*settings.similarity, *settings.analogies):
        path.open("rb").close()  # what cannot be read should fail now
    windows: dict[str, Any] = {"window": settings.window, "subsample": settings.subsample}
    whole = data.text_words(settings.text, min_count=settings.min_count)
    text, pairs = measures.split(whole, settings.max_words, min_count=settings.min_count, **windows)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    asked: dict[QuestionName, Question] = {name: QUESTIONS[name] for name in settings.questions if name != "theory"}
    rows: list[common.Row] = []
    if asked:
        rows = common.run(_study(settings, text, pairs, asked, seeds), settings)
        for name, question in asked.items():
            _draw(name, question, [row for row in rows if row["method"] in question.variants], settings)
    if "theory" in settings.questions:
        of_theory = word2vec_theory.study(text, epochs=settings.theory_epochs, window=settings.window, seeds=seeds)
        common.run(of_theory, dataclasses.replace(settings, out=settings.out / "theory"))
    return rows


def _study(
    settings: Word2VecQuestions,
    text: data.Words,
    pairs: measures.Pairs,
    asked: Mapping[QuestionName, Question],
    seeds: range,
) -> common.Study:
    run_length = settings.batch_size // _NUM_GROUPS
    sizes = {"batch_size": settings.batch_size, "run_length": run_length}
    windows: dict[str, Any] = {"window": settings.window, "subsample": settings.subsample}
    of_seed = {seed: words.word2vec_batches(text, seed=seed, **sizes, **windows) for seed in seeds}
    labels = (settings.batch_size - run_length) * 2 * settings.window
    setting = Setting(settings.num_sampled, _NUM_GROUPS, labels, settings.learning_rate)

    def measure(model: nnx.Module) -> dict[str, float]:
        inputs, outputs = vectors_of(model)
        found: dict[str, float] = {}
        # On the way to divergence squares overflow; that is found out at the end.
        with np.errstate(over="ignore", invalid="ignore"):
            for name, among in (("mrr", np.ones(text.num_words, bool)), ("mrr_rare", measures.rare_words(text))):
                found[name], found[f"{name}_power"] = measures.rank(inputs, outputs, pairs, among, text.counts)
            vectors = data.WordVectors(text.words, np.nan_to_num(inputs))
            files = file_scores(vectors, settings.similarity, settings.analogies, settings.restrict)
        scores = {name: result.get("spearman", result.get("accuracy")) for name, result in files.items()}
        return found | {name: float("nan") if score is None else score for name, score in scores.items()}

    def run(variant: str, seed: int, folder: Path | None) -> dict[str, Any]:
        """Trains one variant; a training that diverges says so in its row."""
        batches, chosen = of_seed[seed], options(variant, setting)
        num_steps = max(1, round(settings.epochs * batches.batches_per_epoch))
        near = measures.nearest_file(settings.out, variant, seed)
        near.unlink(missing_ok=True)  # of other settings, where this training may diverge

        def at_end(model: nnx.Module) -> dict[str, Any]:
            inputs, outputs = vectors_of(model)
            found = measure(model)
            if not np.isfinite(found["mrr"]):
                raise FloatingPointError("a vector is no longer finite.")
            measures.save_nearest(near, inputs)
            return found | measures.geometry(inputs, outputs, text.counts)._asdict()

        def make(*_: Any) -> Any:
            return words.word2vec_model(batches, num_steps, dim=settings.dim, seed=seed, **chosen)

        training = common.Training(make, batches, num_steps, at_end, measure, _CURVE, words.word2vec_step_loss)
        try:
            by = training.by(chosen.get("sampler"), words.word2vec_loss(1), f"{variant}, seed {seed}")
            return {**by(folder), "diverged": 0, **kept_in(settings.out, near)}
        except FloatingPointError:
            return {"diverged": 1}

    def speed(row: common.Row, rows: Sequence[common.Row]) -> float | None:
        return text.total * settings.epochs / row["seconds"] if row.get("seconds") else None

    def shared(row: common.Row, rows: Sequence[common.Row]) -> float | None:
        return measures.shared_neighbours(settings.out, row["method"], REFERENCE, seeds)

    variants = dict.fromkeys(variant for question in asked.values() for variant in question.variants)
    geometry = [*_columns(_GEOMETRY), common.Column("shared", "shared", ".3f", shared)]
    of = "another" if len(seeds) > 1 else "the same"
    caption = f"shared: nearest neighbours in common with the reference of {of} seed"
    return common.Study(
        f"{text.name}: {text.total:,} words, {text.num_words:,} of them different; {len(pairs.words):,} pairs held out",
        [
            common.Method({"method": variant, "seed": seed}, functools.partial(run, variant, seed))
            for variant in variants
            for seed in seeds
        ],
        (
            common.Column("variant", "method"),
            *_columns(_scores(settings)),
            common.Column("words/s", "words_per_second", ",.0f", speed),
            common.Column("diverged", "diverged", ".0%"),
            *(geometry if "correction" in asked else ()),
        ),
        [common.Panel(common.curves("epoch", "mrr"), {"xlabel": "passes over the text", "ylabel": "held-out MRR"})],
        caption=caption if "correction" in asked else None,
        reference=REFERENCE,
        picture="variants.png",
        may_change=("questions", "seeds", "theory_epochs"),
        data=_digest(settings, text, pairs),
    )


def _digest(settings: Word2VecQuestions, text: data.Words, pairs: measures.Pairs) -> str:
    """Of what is trained on and measured with."""
    measured = (np.fromfile(path, np.uint8) for path in (*settings.similarity, *settings.analogies))
    return f"{text.digest} {digest_of(*pairs, *measured)}"


def _scores(settings: Word2VecQuestions) -> dict[str, str]:
    """Names and headings of the scores."""
    files = [path.stem for path in (*settings.similarity, *settings.analogies)]
    return {"mrr": "held-out MRR", "mrr_rare": "MRR of rare words", **dict(zip(files, files, strict=True))}


def _columns(headings: Mapping[str, str]) -> list[common.Column]:
    """Columns of means over the seeds, with the standard deviation in brackets, in units of the last digit."""

    def shown(name: str, row: common.Row, rows: Sequence[common.Row]) -> str:
        values = np.array(row.get(f"{name}_by_seed", ()))
        if not len(values):  # a file may have no pair or question that can be asked
            return "diverged" if row.get("diverged") else "-"
        return with_error(values.mean(), values.std(ddof=1) if len(values) > 1 else 0.0)

    return [
        common.Column(heading, f"{name}_over_seeds", of=functools.partial(shown, name))
        for name, heading in headings.items()
    ]


def _draw(name: str, question: Question, rows: Sequence[common.Row], settings: Word2VecQuestions) -> None:
    """A panel for each score: over the number that the question varies, its variants, or the text that was read."""
    headings = _scores(settings) | {"words_per_second": "words/s"} | (_GEOMETRY if name == "correction" else {})
    values: Sequence[Any] = question.values or [variant.replace(" ", "\n") for variant in question.variants]
    places = dict(zip(question.variants, values, strict=True))
    placed = [{**row, "place": places[row["method"]]} for row in rows]
    axes = {"xlabel": question.axis} | ({"xscale": "log"} if min(question.values or (0,)) > 0 else {})
    lines: Any = functools.partial(common.sweep, "place", by=lambda row: "mean, lowest and highest of the seeds")
    if name == "hard":
        axes, headings = {"xlabel": "passes over the text", "xscale": "log"}, _scores(settings)
        lines = functools.partial(common.curves, "epoch")
    panels = [common.Panel(lines(score), {**axes, "ylabel": heading}) for score, heading in headings.items()]
    report.draw(question.title, panels, placed, REFERENCE, settings.out / f"{name}.png")
