"""Word vectors by candax and by gensim: the same words of the same text, words per second and scores, in one run.

    pip install -e '.[bench]'
    python benchmarks/word2vec.py TEXT... --similarity PAIRS... --analogies QUESTIONS...
    python benchmarks/word2vec.py TEXT... --profile                 (which operations of candax's step take the time)

Skip-gram (or ``--direction cbow``) with negative sampling, dim 100, window 5, k = 5, subsampling at 1e-3, words seen 5
times or more, 5 epochs, seeds 0, 1, 2, each library's own learning rate: gensim's falls from .025, candax's from .035.
gensim works with two threads on a file of the very words that candax has read (its quickest way), so that both see the
same text and vocabulary. Without TEXT the text is the identifiers of Python's standard library.

The tables: the mean score over the seeds, on each file and on all files of similarity together; words of the text per
second of training alone (candax: without compilation, which "seconds" includes), and per second of processor time
(candax: with compilation), which tells more where others use the machine: then whoever has more threads gets more of
it. The intervals: of the difference of the means, 95 %, by drawing the file's pairs (or questions) again, the same for
both. What is in the folder ``--out`` already is not run again, so that
a run that was cut off goes on.
"""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from flax import nnx
from measuring import show, write
from operations import operations, show_operations

import candax as cx
from candax.allocation import with_reused_memory
from candax.recipes import common
from candax.recipes.words.threads import one_thread

MIN_COUNT, RESAMPLES, WORKERS = 5, 1000, 2
# Two processes, each on a processor of its own, wait for one another in turn by a number that both can write.
HANDOVER = """
import mmap, os, signal, time
rounds, turns, number = 20, 10_000, mmap.mmap(-1, 4096)
cpus = sorted(os.sched_getaffinity(0))[:2]
mine = 0 if os.fork() else 1
signal.alarm(20)  # neither waits for ever where the other has failed
os.sched_setaffinity(0, {cpus[mine]})
least = 1.0
for _ in range(rounds):
    start = time.perf_counter()
    for _ in range(turns):
        while number[0] != mine:
            pass
        number[0] = 1 - mine
    least = min(least, (time.perf_counter() - start) / turns)
if mine == 0:
    print(least)
    os.wait()
"""


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
    profile: bool = False
    """Instead of all else, prints which operations of a step of candax take how long."""
    out: Path = Path("runs/benchmark_word2vec")
    """Folder for vectors, times and results.json."""


def handover() -> float | None:
    """Nanoseconds for a number to go from one processor to another and back; None where that cannot be measured.

    gensim's threads write the same vectors and wait for one another so. Some 200 of it are Python's own time.
    """
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None
    done = subprocess.run([sys.executable, "-c", HANDOVER], capture_output=True, text=True, check=False)
    return 1e9 * float(done.stdout) if done.returncode == 0 else None


def train_candax(text: cx.data.Words, settings: Settings, seed: int) -> tuple[cx.data.WordVectors, float, float]:
    """Vectors, seconds of training without compilation, and seconds of processor time with it."""
    start = time.process_time()
    trained = cx.recipes.words.train_word2vec(
        text, epochs=settings.epochs, direction=settings.direction, dim=settings.dim, seed=seed
    )
    return trained.vectors, trained.seconds, time.process_time() - start


def profile(text: cx.data.Words, settings: Settings) -> None:
    """Prints the operations of a step of candax, and what a step takes with all that Python does for it."""
    words = cx.recipes.words.training
    batches = words.word2vec_batches(text, direction=settings.direction)
    model, optimizer = words.word2vec_model(batches, batches.batches_per_epoch, dim=settings.dim)

    @functools.partial(nnx.jit, donate_argnums=(0, 1))
    def step(model: nnx.Module, optimizer: cx.Optimizer, batch: Any) -> jax.Array:
        loss, grads = cx.value_and_grad(words.word2vec_step_loss)(model, batch)
        optimizer.update(model, grads)
        return loss

    each = [batches[0, i % batches.batches_per_epoch] for i in range(200)]
    program = step.lower(model, optimizer, each[0]).compile().compiled.as_text()
    show_operations("a step of candax", operations(program, lambda: step(model, optimizer, each[0]), 200), 24)
    start = time.perf_counter()
    for batch in each:
        loss = step(model, optimizer, batch)
    jax.block_until_ready(loss)
    print(f"{1e3 * (time.perf_counter() - start) / len(each):.2f} ms per step of {batches.batch_size} places")


def train_gensim(text: cx.data.Words, settings: Settings, seed: int) -> tuple[cx.data.WordVectors, float, float]:
    """Vectors, seconds of training without counting words, and seconds of processor time of the same."""
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
        start, busy = time.perf_counter(), time.process_time()
        model.train(
            corpus_file=str(path),
            total_words=model.corpus_total_words,
            total_examples=model.corpus_count,
            epochs=settings.epochs,
        )
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
    if model.corpus_total_words != text.total or set(model.wv.index_to_key) != set(text.words):
        raise ValueError(f"gensim read {model.corpus_total_words} words, candax {text.total}: not the same text.")
    order = [model.wv.key_to_index[word] for word in text.words]
    return cx.data.WordVectors(text.words, model.wv.vectors[order]), seconds, busy


TRAIN = {"candax": train_candax, "gensim": train_gensim}


def train(
    text: cx.data.Words, settings: Settings, library: str, seed: int, threads: str
) -> tuple[cx.data.WordVectors, dict]:
    """One run, or what it has left behind."""
    name = f"{library}-{settings.direction}-{settings.dim}-{settings.epochs}-{seed}"
    path, about = settings.out / f"{name}.safetensors", settings.out / f"{name}.json"
    if not about.exists():
        between = handover()
        start = time.perf_counter()
        vectors, seconds, busy = TRAIN[library](text, settings, seed)
        vectors.save(path)
        words = text.total * settings.epochs
        record = {
            "seconds": time.perf_counter() - start,
            "words_per_second": words / seconds,
            "words_per_busy_second": words / busy,
            "handover_nanoseconds": between,
            "threads": threads,
            "text": text.digest,
        }
        about.write_text(json.dumps(record) + "\n")
    record = json.loads(about.read_text())
    if (record["text"], record.get("threads")) != (text.digest, threads):
        raise ValueError(f"{about} is of another text or number of threads. Choose another --out.")
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


def compare(parts: Sequence[tuple[Callable[[np.ndarray], np.ndarray], int]], seeds: int) -> dict[str, Any]:
    """Means over the seeds of both (the first runs are gensim's), their difference and its interval.

    Of several files the scores are averaged, and of each its own pairs are drawn again.
    """

    def means(draw: Callable[[int], np.ndarray]) -> np.ndarray:
        return np.mean([scores(draw(number)).reshape(2, seeds).mean(1) for scores, number in parts], axis=0)

    rng = np.random.default_rng(0)
    differences = [np.diff(means(lambda n: rng.integers(0, n, n)))[0] for _ in range(RESAMPLES)]
    gensim, candax = means(np.arange)
    low, high = np.nanquantile(differences, [0.025, 0.975])
    return {
        "number": sum(number for _, number in parts),
        "gensim": float(gensim),
        "candax": float(candax),
        "difference": float(candax - gensim),
        "interval": [float(low), float(high)],
    }


def ratios(times: dict[str, list[dict]], of: str) -> list[float]:
    """Of candax to gensim, of runs that followed one another."""
    return [mine[of] / theirs[of] for mine, theirs in zip(times["candax"], times["gensim"], strict=True)]


def main(settings: Settings) -> None:
    """Runs what is missing, then prints and writes the comparison."""
    one = one_thread(settings.dim)  # as `candax word2vec` does
    threads = {"candax": "1" if one else os.environ.get("PJRT_NPROC", "XLA's"), "gensim": str(WORKERS)}
    text = cx.data.text_words(settings.text, min_count=MIN_COUNT)
    if settings.profile:
        return profile(text, settings)
    settings.out.mkdir(parents=True, exist_ok=True)
    print(f"{text.name}: {text.total:,} words, {text.num_words:,} of them different")
    runs: dict[str, list[cx.data.WordVectors]] = {library: [] for library in settings.libraries}
    times: dict[str, list[dict]] = {library: [] for library in settings.libraries}
    for seed in settings.seeds:  # by turns, so that what else the machine does meets both
        for library in settings.libraries:
            vectors, record = train(text, settings, library, seed, threads[library])
            runs[library].append(vectors)
            times[library].append(record)
            between = record.get("handover_nanoseconds")
            said = f", {between:.0f} ns from processor to processor and back" if between else ""
            print(f"{library}, seed {seed}: {record['words_per_second']:,.0f} words/s{said}")
    result: dict[str, Any] = {"text": text.name, "words": text.total, "times": times, "scores": {}}
    if set(settings.libraries) == set(TRAIN):
        both = [*runs["gensim"], *runs["candax"]]
        similarity = {path.stem: similarity_scores(path, both) for path in settings.similarity}
        analogies = {path.stem: analogy_scores(path, both) for path in settings.analogies}
        for name, part in {**similarity, **analogies}.items():
            result["scores"][name] = compare([part], len(settings.seeds))
        if len(similarity) > 1:
            result["scores"]["mean of similarity"] = compare(list(similarity.values()), len(settings.seeds))
        columns = common.columns(name="", number=",", gensim=".3f", candax=".3f", difference="+.3f", interval="+.3f")
        show("scores", columns, [{"name": name, **row} for name, row in result["scores"].items()], "interval: 95 %")
    named = ("words_per_second", "words_per_busy_second", "seconds")
    rows = [
        {
            "library": library,
            **{name: float(np.mean([record[name] for record in records])) for name in named},
            "words_per_second_by_seed": [record["words_per_second"] for record in records],
        }
        for library, records in times.items()
    ]
    speed = common.Column("words/s", "words_per_second", ",.0f", spread=True)
    columns = [*common.columns(library=""), speed, *common.columns(words_per_busy_second=",.0f", seconds=",.0f")]
    show("means of the seeds", columns, rows)
    if set(settings.libraries) == set(TRAIN):
        result["ratios"] = {of: ratios(times, of) for of in ("words_per_second", "words_per_busy_second")}
        for of, found in result["ratios"].items():
            each = ", ".join(f"{ratio:.2f}" for ratio in found)
            print(f"candax / gensim, {of}: {np.median(found):.2f} (median of {each})")
    write(settings.out / "results.json", result)


if __name__ == "__main__":
    with_reused_memory()
    main(tyro.cli(Settings))
