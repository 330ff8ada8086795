"""Word vectors by candax and by gensim: the same words of the same text, words per second and scores, in one run.

    pip install -e '.[bench]'
    python benchmarks/word2vec.py TEXT... --similarity PAIRS... --analogies QUESTIONS...

Skip-gram (or ``--direction cbow``) with negative sampling, dim 100, window 5, k = 5, subsampling at 1e-3, words seen 5
times or more, 5 epochs, learning rate from .025 down, seeds 0, 1, 2. gensim works with two threads on a file of the
very words that candax has read (its quickest way), so that both see the same text and vocabulary. Without TEXT the text
is the identifiers of Python's standard library.

The table: words of the text a second, in training alone (candax: without compilation, which "seconds" includes), and
the mean score over the seeds, on each file. The intervals: of the difference of these means, 95 %, by drawing the
file's pairs (or questions) again, the same for both. What is in the folder ``--out`` already is not run again, so that
a run that was cut off goes on.
"""

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import candax as cx

MIN_COUNT, RESAMPLES, WORKERS = 5, 1000, 2


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to train on and what to measure with."""

    text: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Text files; none: the identifiers of Python's standard library."""
    similarity: tuple[Path, ...] = ()
    """Files of word pairs and judgements."""
    analogies: tuple[Path, ...] = ()
    """Files of analogies."""
    direction: str = "skipgram"
    """skipgram or cbow."""
    dim: int = 100
    """Coordinates of a vector."""
    epochs: int = 5
    """Passes over the text."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the runs."""
    libraries: tuple[str, ...] = ("gensim", "candax")
    """Which to run."""
    out: Path = Path("runs/benchmark_word2vec")
    """Folder for vectors, times and results.json."""


def train_candax(text: cx.data.Words, settings: Settings, seed: int) -> tuple[cx.data.WordVectors, float]:
    """Vectors, and seconds of training without compilation."""
    trained = cx.recipes.words.train_word2vec(
        text, epochs=settings.epochs, direction=settings.direction, dim=settings.dim, seed=seed
    )
    return trained.vectors, trained.records[-1]["seconds"]


def train_gensim(text: cx.data.Words, settings: Settings, seed: int) -> tuple[cx.data.WordVectors, float]:
    """Vectors, and seconds of training without counting words."""
    from gensim.models import Word2Vec

    sg = int(settings.direction == "skipgram")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text.txt")
        with path.open("w", encoding="utf-8") as file:
            names = np.array([*text.words, "\n"], object)  # -1, the end of a sentence, is the last
            for start in range(0, len(text.ids), 1 << 20):
                file.write(" ".join(names[text.ids[start : start + (1 << 20)]]) + " ")
        # gensim reads lines, and the spaces around a line feed do no harm.
        model = Word2Vec(
            vector_size=settings.dim, window=5, negative=5, sg=sg, min_count=1, workers=WORKERS, seed=seed,
            epochs=settings.epochs,
        )  # fmt: skip
        model.build_vocab(corpus_file=str(path))
        start = time.perf_counter()
        model.train(
            corpus_file=str(path),
            total_words=model.corpus_total_words,
            total_examples=model.corpus_count,
            epochs=settings.epochs,
        )
        seconds = time.perf_counter() - start
    if model.corpus_total_words != text.total or set(model.wv.index_to_key) != set(text.words):
        raise ValueError(f"gensim read {model.corpus_total_words} words, candax {text.total}: not the same text.")
    order = [model.wv.key_to_index[word] for word in text.words]
    return cx.data.WordVectors(text.words, model.wv.vectors[order]), seconds


TRAIN = {"candax": train_candax, "gensim": train_gensim}


def train(text: cx.data.Words, settings: Settings, library: str, seed: int) -> tuple[cx.data.WordVectors, dict]:
    """One run, or what it has left behind."""
    name = f"{library}-{settings.direction}-{settings.dim}-{settings.epochs}-{seed}"
    path, about = settings.out / f"{name}.safetensors", settings.out / f"{name}.json"
    if not about.exists():
        start = time.perf_counter()
        vectors, seconds = TRAIN[library](text, settings, seed)
        vectors.save(path)
        words_per_second = text.total * settings.epochs / seconds
        record = {"seconds": time.perf_counter() - start, "words_per_second": words_per_second, "text": text.digest}
        about.write_text(json.dumps(record) + "\n")
    record = json.loads(about.read_text())
    if record["text"] != text.digest:
        raise ValueError(f"{about} is of another text. Choose another --out.")
    return cx.data.WordVectors.load(path), record


def similarity_scores(path: Path, runs: list[cx.data.WordVectors]) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """From numbers of pairs to each run's score on these pairs; and how many pairs there are."""
    found = [cx.recipes.words.word_similarity(vectors, path) for vectors in runs]
    judgements = found[0].judgements

    def scores(drawn: np.ndarray) -> np.ndarray:
        return np.array([cx.recipes.words.scores.spearman(one.cosines[drawn], judgements[drawn]) for one in found])

    return scores, len(judgements)


def analogy_scores(path: Path, runs: list[cx.data.WordVectors]) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """The same with questions that are answered or not."""
    answers = [cx.recipes.words.word_analogies(vectors, path) for vectors in runs]
    right = np.array([np.concatenate(list(one.right.values())) for one in answers])
    return lambda drawn: right[:, drawn].mean(1), right.shape[1]


def compare(scores: Callable[[np.ndarray], np.ndarray], number: int, seeds: int) -> dict[str, Any]:
    """Means over the seeds of both (the first runs are gensim's), their difference and its interval."""

    def means(drawn: np.ndarray) -> np.ndarray:
        return scores(drawn).reshape(2, seeds).mean(1)

    rng = np.random.default_rng(0)
    differences = [np.diff(means(rng.integers(0, number, number)))[0] for _ in range(RESAMPLES)]
    gensim, candax = means(np.arange(number))
    low, high = np.nanquantile(differences, [0.025, 0.975])
    return {
        "number": number,
        "gensim": float(gensim),
        "candax": float(candax),
        "difference": float(candax - gensim),
        "interval": [float(low), float(high)],
    }


def main(settings: Settings) -> None:
    """Runs what is missing, then prints and writes the comparison."""
    settings.out.mkdir(parents=True, exist_ok=True)
    text = cx.data.text_words(settings.text, min_count=MIN_COUNT)
    console = Console()
    console.print(f"{text.name}: {text.total:,} words, {text.num_words:,} of them different")
    runs: dict[str, list[cx.data.WordVectors]] = {library: [] for library in settings.libraries}
    times: dict[str, list[dict]] = {library: [] for library in settings.libraries}
    for seed in settings.seeds:  # by turns, so that what else the machine does meets both
        for library in settings.libraries:
            vectors, record = train(text, settings, library, seed)
            runs[library].append(vectors)
            times[library].append(record)
            console.print(f"{library}, seed {seed}: {record['words_per_second']:,.0f} words/s")
    result: dict[str, Any] = {"text": text.name, "words": text.total, "times": times, "scores": {}}
    if set(settings.libraries) == set(TRAIN):
        both = [*runs["gensim"], *runs["candax"]]
        for measure, paths in ((similarity_scores, settings.similarity), (analogy_scores, settings.analogies)):
            for path in paths:
                result["scores"][path.stem] = compare(*measure(path, both), len(settings.seeds))
        table = Table("measured with", "number", "gensim", "candax", "difference", "95 %")
        for name, row in result["scores"].items():
            low, high = row["interval"]
            table.add_row(
                name, f"{row['number']:,}", f"{row['gensim']:.3f}", f"{row['candax']:.3f}", f"{row['difference']:+.3f}",
                f"{low:+.3f} ... {high:+.3f}",
            )  # fmt: skip
        console.print(table)
    speed = Table("library", "words/s (mean)", "least", "most", "seconds in all (mean)")
    for library, records in times.items():
        rates = [record["words_per_second"] for record in records]
        seconds = np.mean([record["seconds"] for record in records])
        speed.add_row(library, f"{np.mean(rates):,.0f}", f"{min(rates):,.0f}", f"{max(rates):,.0f}", f"{seconds:.0f}")
    console.print(speed)
    (settings.out / "results.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Settings))
