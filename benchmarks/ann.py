"""Recall against cost of approximate search for the largest inner products, all in one run on the same vectors.

    python benchmarks/ann.py                       (about 20 minutes on 2 cores; needs 8 GB of memory)
    python benchmarks/ann.py --json ann.json
    python benchmarks/ann.py --num-classes 100000  (about 3 minutes)
    python benchmarks/ann.py --data FOLDER --kinds authors words    (trained vectors, some 5 minutes)
    python benchmarks/ann.py --codes int8 --profile                 (which operations take the time)

10^6 vectors of 128 coordinates, 256 queries, the 100 best of each. Kinds of vectors (`ann_vectors.py`): "clustered"
(1000 Gaussian clusters of unequal size; queries lie near vectors), "anisotropic" (Gaussian, the variance of the i-th
principal axis is i^-1.4, axes turned at random; queries of the same distribution), and, with a folder of data, two that
are trained first: "authors" (class vectors of papers' authors, asked by papers) and "words" (word2vec of novels). What
is measured:

* exact: this library's `streaming_top_k`, and one matrix product with `jax.lax.top_k`;
* `jax.lax.approx_max_k` on the same product, with recall_target .9 (on a CPU it is exact and no quicker);
* IVF of this library, with "mean", "rotated" and "int8" codes, at rising numbers of codes seen (hm_num) and kept;
* faiss (if it is installed: pip install -e '.[bench]'): IVF-Flat and IVF-RaBitQ at rising numbers of lists visited, the
  latter alone and with its best ones scored exactly.

Every index has 1024 lists, or about the root of the number of vectors if that is less. Times are the least of several
runs of the whole batch; building is timed apart. In the end IVF-Flat at its cheapest point of recall .9 and each kind
of codes, at its cheapest point of at least the same recall, are called by turns: the ratio of their times is the median
over the rounds, and the goal is at most 1.2 for the best of them, with an index built in at most twice faiss' time.
docs/guides/serving.md has figures.
"""

import dataclasses
import functools
import gc
import importlib.util
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from ann_vectors import DIM, MADE, NUM_QUERIES, TRAINED, make_vectors
from measuring import least_ms, machine, show, write
from operations import limits, operations, show_operations

import candax as cx
from candax.allocation import with_reused_memory
from candax.recipes import common

K, NUM_LISTS = 100, 1024
FLAT = "faiss IVF-Flat"
CODES: tuple[Literal["mean", "rotated", "int8"], ...] = ("mean", "rotated", "int8")
WANTED_RECALL = 0.9
# hm_num and num_kept of IVF-BQ, as shares of the classes; lists visited by faiss.
SEEN = (0.001, 0.002, 0.003, 0.004, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
KEPT_SHARES = (0.05, 0.1, 0.25)
# The same with "int8" codes, whose estimates are nearly exact.
FINER_SEEN = (*SEEN, 0.0015, 0.0023, 0.0025, 0.0075, 0.015, 0.03, 0.035, 0.06, 0.075, 0.085, 0.15, 0.3, 0.4, 0.6, 1.0)
LISTS_VISITED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Nothing is measured beyond it.
ENOUGH = 0.98


class Searcher(NamedTuple):
    """What can be called again, for a comparison by turns."""

    point: "Point"
    search: Callable[[], Any]
    text: Callable[[], str] = lambda: ""  # of the compiled program


@dataclasses.dataclass(frozen=True)
class Point:
    """One point of a curve; ``build_seconds`` is 0 where nothing is built."""

    vectors: str
    method: str
    setting: str
    recall: float
    milliseconds: float
    build_seconds: float


def recall_of(found: Any, true: np.ndarray) -> float:
    """The mean share of the true ids that were found."""
    pairs = zip(np.asarray(found), true, strict=True)
    return float(np.mean([np.isin(best, some).mean() for some, best in pairs]))


def exact_points(kind: str, queries: jax.Array, classes: cx.Classes, repeats: int) -> tuple[list[Point], np.ndarray]:
    """Exact search in several ways, and what it finds."""
    searches = {
        "exact, in blocks": jax.jit(lambda q, c: cx.blocks.streaming_top_k(q, c, K)),
        "exact, lax.top_k": jax.jit(lambda q, c: jax.lax.top_k(q @ c.vectors.T, K)),
        "lax.approx_max_k": jax.jit(lambda q, c: jax.lax.approx_max_k(q @ c.vectors.T, K, recall_target=WANTED_RECALL)),
    }
    points, true = [], None
    for name, search in searches.items():
        found = np.asarray(search(queries, classes)[1])
        true = found if true is None else true
        milliseconds = least_ms(lambda search=search: search(queries, classes), repeats)
        points.append(Point(kind, name, "", recall_of(found, true), milliseconds, 0.0))
    assert true is not None
    return points, true


def settings(num_classes: int, codes: str) -> Iterator[tuple[int, int]]:
    """(hm_num, num_kept) of growing cost."""
    for seen in sorted(FINER_SEEN if codes == "int8" else SEEN):
        hm_num = max(2 * K, int(seen * num_classes))
        if codes == "int8":
            yield hm_num, K + 6
            continue
        for kept in sorted({min(hm_num, max(2 * K, int(share * hm_num))) for share in KEPT_SHARES}):
            yield hm_num, kept


def num_lists(num_classes: int) -> int:
    """Lists of every index: a power of two."""
    return min(NUM_LISTS, 1 << round(math.log2(math.sqrt(num_classes))))


def ivf_points(
    kind: str, codes: Any, queries: jax.Array, classes: cx.Classes, true: np.ndarray, repeats: int
) -> list[Searcher]:
    """The curve of this library's index."""
    lists = num_lists(classes.num_classes)
    index = cx.samplers.ivf_index(num_centers=lists, hm_num=classes.num_classes, num_kept=K, codes=codes)
    compiled = jax.jit(index.build).lower(jax.random.key(0), classes).compile()
    start = time.perf_counter()
    state = jax.block_until_ready(compiled(jax.random.key(0), classes))
    seconds = time.perf_counter() - start
    found = []
    for hm_num, kept in dict.fromkeys(settings(classes.num_classes, codes)):
        other = cx.samplers.ivf_index(**index.settings | {"hm_num": hm_num, "num_kept": kept})
        jitted = jax.jit(other.find, static_argnums=3)
        search = functools.partial(jitted, state, queries, classes, K)
        recall = recall_of(search()[1], true)
        milliseconds = least_ms(search, repeats)
        point = Point(kind, f"IVF {codes}", f"{hm_num} seen, {kept} kept", recall, milliseconds, seconds)

        def text(jitted: Any = jitted) -> str:
            return jitted.lower(state, queries, classes, K).compile().as_text()

        found.append(Searcher(point, search, text))
        if recall > ENOUGH:
            break
    return found


def faiss_points(kind: str, queries: np.ndarray, vectors: np.ndarray, true: np.ndarray, repeats: int) -> list[Searcher]:
    """The curves of faiss."""
    import faiss

    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    metric, lists = faiss.METRIC_INNER_PRODUCT, num_lists(len(vectors))

    def quantizer() -> Any:
        return faiss.IndexFlatIP(DIM)

    flat = faiss.IndexFlatIP(DIM)
    flat.add(vectors)
    search = functools.partial(flat.search, queries, K)
    point = Point(kind, "faiss exact", "", recall_of(search()[1], true), least_ms(search, repeats), 0.0)
    found = [Searcher(point, search)]
    indexes = {FLAT: faiss.IndexIVFFlat(quantizer(), DIM, lists, metric)}
    if hasattr(faiss, "IndexIVFRaBitQ"):
        indexes["faiss IVF-RaBitQ"] = faiss.IndexIVFRaBitQ(quantizer(), DIM, lists, metric)
    for name, index in indexes.items():
        index.cp.spherical = True  # as for the inner product
        start = time.perf_counter()
        index.train(vectors)
        index.add(vectors)
        seconds = time.perf_counter() - start
        searched = {name: index}
        if name == "faiss IVF-RaBitQ":
            index.qb = 4
            refined = faiss.IndexRefine(index, flat)
            refined.k_factor = 10
            searched[f"{name}, 1000 refined"] = refined
        for curve, searcher in searched.items():
            for visited in LISTS_VISITED:

                def search(searcher: Any = searcher, index: Any = index, visited: int = visited) -> Any:
                    index.nprobe = visited
                    return searcher.search(queries, K)

                recall = recall_of(search()[1], true)
                milliseconds = least_ms(search, repeats)
                found.append(Searcher(Point(kind, curve, f"{visited} lists", recall, milliseconds, seconds), search))
                if recall > ENOUGH:
                    break
    return found


def by_turns(found: list[Searcher], rounds: int) -> list[dict[str, Any]]:
    """Each kind of codes beside IVF-Flat, at no less than its recall: medians over calls by turns."""
    reached = [one for one in found if one.point.method == FLAT and one.point.recall >= WANTED_RECALL]
    if not reached:
        return []
    # By how much they read, as single timings are noisy; one-bit codes have two numbers that cost.
    flat = reached[0]
    rows = []
    for codes in CODES:
        as_good = [one for one in found if one.point.method == f"IVF {codes}" and one.point.recall >= flat.point.recall]
        if not as_good:
            continue
        ours = as_good[0] if codes == "int8" else min(as_good, key=lambda one: one.point.milliseconds)
        pairs = [(least_ms(ours.search, 1), least_ms(flat.search, 1)) for _ in range(rounds)]
        rows.append(
            {
                **{"vectors": flat.point.vectors, "codes": codes, "setting": ours.point.setting},
                **{"recall": ours.point.recall, "faiss_recall": flat.point.recall, "faiss": flat.point.setting},
                **{"ms": statistics.median(a for a, _ in pairs), "faiss_ms": statistics.median(b for _, b in pairs)},
                "ratio": statistics.median(a / b for a, b in pairs),
                "build_ratio": ours.point.build_seconds / flat.point.build_seconds,
            }
        )
    return rows


def first_good(found: list[Searcher]) -> list[Searcher]:
    """Of each kind of codes the search that reads least and reaches the wanted recall."""
    first: dict[str, Searcher] = {}
    for one in found:
        if one.point.method.startswith("IVF ") and one.point.recall >= WANTED_RECALL:
            first.setdefault(one.point.method, one)
    return list(first.values())


def report(points: list[Point], num_classes: int) -> None:
    """On one kind of vectors: curves, without points that cost more and find less, and ratios at the wanted recall."""
    rows = []
    for p in points:
        rivals = [r for r in points if r.method == p.method and r is not p]
        if not any(r.recall >= p.recall and r.milliseconds <= p.milliseconds for r in rivals):
            rows.append(dataclasses.asdict(p) | {"build_seconds": p.build_seconds or None})
    columns = common.columns(vectors="", method="", setting="", recall=".3f", milliseconds=".1f", build_seconds=".1f")
    show(f"{num_classes:,} x {DIM}, {NUM_QUERIES} queries, {K} best: {machine()}", columns, rows)
    exact = min(p.milliseconds for p in points if p.method.startswith("exact"))
    for method in dict.fromkeys(p.method for p in points):
        good = [p for p in points if p.method == method and p.recall >= WANTED_RECALL]
        if not good:
            print(f"{points[0].vectors}, {method}: never reaches recall {WANTED_RECALL}")
            continue
        found = min(good, key=lambda p: p.milliseconds)
        print(
            f"{found.vectors}, {method} at recall {found.recall:.3f}: {found.milliseconds:.1f} ms, "
            f"exact search takes {exact / found.milliseconds:.1f} times as long"
        )


def main(
    output: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    num_classes: int = 1_000_000,
    repeats: int = 3,
    rounds: int = 15,
    data: Path | None = None,
    kinds: tuple[str, ...] | None = None,
    codes: tuple[Literal["mean", "rotated", "int8"], ...] = CODES,
    profile: bool = False,
) -> None:
    """Measures and prints.

    Args:
        output: file for the figures.
        num_classes: how many vectors; of trained ones at most so many.
        repeats: timed runs of each search.
        rounds: calls by turns behind the ratios to faiss.
        data: folder with acl-authors and eltec-eng, for "authors" and "words".
        kinds: of vectors; None: all, of those that are trained only with a folder of data.
        codes: of this library's indexes.
        profile: prints which operations of searches with a recall of .9 take how long, and what simple programs reach.
    """
    points: list[Point] = []
    compared: list[dict[str, Any]] = []
    for kind in (*MADE, *(TRAINED if data else ())) if kinds is None else kinds:
        vectors, queries = make_vectors(kind, num_classes, data)
        classes = cx.Classes(jnp.asarray(vectors), None, None, jnp.int32(len(vectors)))
        exact, true = exact_points(kind, jnp.asarray(queries), classes, repeats)
        found: list[Searcher] = []
        for some in codes:
            found += ivf_points(kind, some, jnp.asarray(queries), classes, true, repeats)
        if importlib.util.find_spec("faiss") is not None:
            found += faiss_points(kind, queries, vectors, true, repeats)
        points += exact + [one.point for one in found]
        compared += by_turns(found, rounds)
        for one in first_good(found) if profile else ():
            show_operations(f"{kind}, {one.point.method}: {one.point.setting}", operations(one.text(), one.search))
        report(exact + [one.point for one in found], len(vectors))
        del vectors, classes, found
        gc.collect()
    for row in compared:
        print(
            f"{row['vectors']}, {row['codes']} codes by turns with {FLAT}: {row['ratio']:.2f} times its time "
            f"({row['ms']:.1f} ms at recall {row['recall']:.3f}, {row['setting']}; {row['faiss_ms']:.1f} ms at "
            f"{row['faiss_recall']:.3f}, {row['faiss']}), built in {row['build_ratio']:.2f} times its time"
        )
    for name, most in limits().items() if profile else ():
        print(f"{most:.3g}: {name}")
    record = {"where": machine(), "num_classes": num_classes, "by_turns": compared}
    write(output, {**record, "points": [dataclasses.asdict(p) for p in points]})


if __name__ == "__main__":
    with_reused_memory()
    tyro.cli(main)
