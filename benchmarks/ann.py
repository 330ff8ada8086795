"""Recall against cost of approximate search for the largest inner products, all in one run on the same vectors.

    python benchmarks/ann.py                       (about 15 minutes on 2 cores; needs 8 GB of memory)
    python benchmarks/ann.py --json ann.json
    python benchmarks/ann.py --num-classes 100000  (about 2 minutes)

10^6 vectors of 128 coordinates, 256 queries, the 100 best of each. Two kinds of vectors: "clustered" (1000 Gaussian
clusters of unequal size; queries lie near vectors) and "anisotropic" (Gaussian, the variance of the i-th principal axis
is i^-1.4, axes turned at random; queries of the same distribution). Methods:

* exact: this library's `streaming_top_k`, and one matrix product with `jax.lax.top_k`;
* `jax.lax.approx_max_k` on the same product, with recall_target .9 (on a CPU it is exact and no quicker);
* IVF-BQ of this library, with "mean" and "rotated" codes, at rising numbers of codes seen (hm_num) and kept;
* faiss (if it is installed: pip install -e '.[bench]'): IVF-Flat and IVF-RaBitQ at rising numbers of lists visited, the
  latter alone and with its best ones scored exactly.

Every index has 1024 lists. Times are the least of several runs of the whole batch; building is timed apart. What it
should show: at recall .9 IVF-BQ costs at most a tenth of the quicker exact search where vectors are clustered, "mean"
codes fail on anisotropic vectors and "rotated" ones do not, and "rotated" codes take 1.5 times as long as faiss
IVF-Flat on the former and less than it on the latter. (docs/guides/serving.md has figures.)
"""

import dataclasses
import gc
import importlib.util
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import candax as cx

DIM, NUM_QUERIES, K, NUM_LISTS = 128, 256, 100, 1024
WANTED_RECALL = 0.9
# hm_num and num_kept of IVF-BQ, as shares of the classes; lists visited by faiss.
SEEN = (0.001, 0.002, 0.003, 0.004, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
KEPT_SHARES = (0.05, 0.1, 0.25)
LISTS_VISITED = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclasses.dataclass(frozen=True)
class Point:
    """One point of a curve; ``build_seconds`` is 0 where nothing is built."""

    vectors: str
    method: str
    setting: str
    recall: float
    milliseconds: float
    build_seconds: float


def make_vectors(kind: str, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and queries."""
    rng = np.random.default_rng(0)
    if kind == "clustered":
        number = max(2, num_classes // 1000)
        centers = rng.normal(size=(number, DIM)).astype(np.float32)
        share = rng.dirichlet(np.ones(number))
        vectors = centers[rng.choice(number, num_classes, p=share)]
        vectors += np.float32(0.7) * rng.standard_normal(vectors.shape, np.float32)
        queries = vectors[rng.integers(0, num_classes, NUM_QUERIES)]
        return vectors, queries + np.float32(0.3) * rng.standard_normal(queries.shape, np.float32)
    axes = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0] * np.arange(1, DIM + 1) ** -0.7
    return tuple(
        rng.standard_normal((n, DIM), np.float32) @ axes.T.astype(np.float32) for n in (num_classes, NUM_QUERIES)
    )


def least_ms(search: Callable[[], Any], repeats: int) -> float:
    """The least time of some runs, after one that warms up."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(search())
        times.append(1e3 * (time.perf_counter() - start))
    return min(times[1:])


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


def settings(num_classes: int) -> Iterator[tuple[int, int]]:
    """(hm_num, num_kept) of growing cost."""
    for seen in SEEN:
        hm_num = max(2 * K, int(seen * num_classes))
        for kept in sorted({min(hm_num, max(2 * K, int(share * hm_num))) for share in KEPT_SHARES}):
            yield hm_num, kept


def ivf_bq_points(
    kind: str, codes: Any, queries: jax.Array, classes: cx.Classes, true: np.ndarray, repeats: int
) -> list[Point]:
    """The curve of this library's index."""
    index = cx.samplers.ivf_index(num_centers=NUM_LISTS, hm_num=classes.num_classes, num_kept=K, codes=codes)
    compiled = jax.jit(index.build).lower(jax.random.key(0), classes).compile()
    start = time.perf_counter()
    state = jax.block_until_ready(compiled(jax.random.key(0), classes))
    seconds = time.perf_counter() - start
    points = []
    for hm_num, kept in settings(classes.num_classes):
        other = cx.samplers.ivf_index(**index.settings | {"hm_num": hm_num, "num_kept": kept})
        search = jax.jit(other.find, static_argnums=3)
        recall = recall_of(search(state, queries, classes, K)[1], true)
        milliseconds = least_ms(lambda search=search: search(state, queries, classes, K), repeats)
        points.append(Point(kind, f"IVF-BQ {codes}", f"{hm_num} seen, {kept} kept", recall, milliseconds, seconds))
        if recall > 0.995:
            break
    return points


def faiss_points(kind: str, queries: np.ndarray, vectors: np.ndarray, true: np.ndarray, repeats: int) -> list[Point]:
    """The curves of faiss."""
    import faiss

    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    metric = faiss.METRIC_INNER_PRODUCT

    def quantizer() -> Any:
        return faiss.IndexFlatIP(DIM)

    flat = faiss.IndexFlatIP(DIM)
    flat.add(vectors)
    milliseconds = least_ms(lambda: flat.search(queries, K), repeats)
    points = [Point(kind, "faiss exact", "", recall_of(flat.search(queries, K)[1], true), milliseconds, 0.0)]
    indexes = {"faiss IVF-Flat": faiss.IndexIVFFlat(quantizer(), DIM, NUM_LISTS, metric)}
    if hasattr(faiss, "IndexIVFRaBitQ"):
        indexes["faiss IVF-RaBitQ"] = faiss.IndexIVFRaBitQ(quantizer(), DIM, NUM_LISTS, metric)
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
                index.nprobe = visited
                recall = recall_of(searcher.search(queries, K)[1], true)
                milliseconds = least_ms(lambda searcher=searcher: searcher.search(queries, K), repeats)
                points.append(Point(kind, curve, f"{visited} lists", recall, milliseconds, seconds))
                if recall > 0.995:
                    break
    return points


def cheapest(points: list[Point]) -> dict[tuple[str, str], Point]:
    """Of each method the quickest point of the wanted recall, by kind of vectors and method."""
    best: dict[tuple[str, str], Point] = {}
    for point in points:
        key = (point.vectors, point.method)
        if point.recall >= WANTED_RECALL and (key not in best or point.milliseconds < best[key].milliseconds):
            best[key] = point
    return best


def report(points: list[Point], console: Console, where: str, num_classes: int) -> None:
    """The curves, without points that cost more and find less than another, and the ratios at the wanted recall."""
    table = Table(title=f"{num_classes:,} x {DIM}, {NUM_QUERIES} queries, {K} best: {where}")
    for column in ("vectors", "method", "setting", "recall", "ms", "build s"):
        table.add_column(column, justify="right" if column in ("recall", "ms", "build s") else "left")
    for p in points:
        rivals = [r for r in points if (r.vectors, r.method) == (p.vectors, p.method) and r is not p]
        if not any(r.recall >= p.recall and r.milliseconds <= p.milliseconds for r in rivals):
            build = f"{p.build_seconds:.1f}" if p.build_seconds else "-"
            table.add_row(p.vectors, p.method, p.setting, f"{p.recall:.3f}", f"{p.milliseconds:.1f}", build)
    console.print(table)
    best = cheapest(points)
    for kind in dict.fromkeys(p.vectors for p in points):
        exact = min(p.milliseconds for p in points if p.vectors == kind and p.method.startswith("exact"))
        for method in dict.fromkeys(p.method for p in points if p.vectors == kind):
            found = best.get((kind, method))
            if found is None:
                console.print(f"{kind}, {method}: never reaches recall {WANTED_RECALL}")
            else:
                console.print(
                    f"{kind}, {method} at recall {found.recall:.3f}: {found.milliseconds:.1f} ms, "
                    f"exact search takes {exact / found.milliseconds:.1f} times as long"
                )


def main(
    output: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    num_classes: int = 1_000_000,
    repeats: int = 3,
    kinds: tuple[str, ...] = ("clustered", "anisotropic"),
) -> None:
    """Measures and prints.

    Args:
        output: file for the figures.
        num_classes: how many vectors.
        repeats: timed runs of each search.
        kinds: of vectors.
    """
    points: list[Point] = []
    for kind in kinds:
        vectors, queries = make_vectors(kind, num_classes)
        classes = cx.Classes(jnp.asarray(vectors), None, None, jnp.int32(num_classes))
        exact, true = exact_points(kind, jnp.asarray(queries), classes, repeats)
        points += exact
        for codes in ("mean", "rotated"):
            points += ivf_bq_points(kind, codes, jnp.asarray(queries), classes, true, repeats)
        if importlib.util.find_spec("faiss") is not None:
            points += faiss_points(kind, queries, vectors, true, repeats)
        del vectors, classes
        gc.collect()
    device = jax.devices()[0]
    where = f"{device.device_kind} ({device.platform}), JAX {jax.__version__}, {platform.machine()}"
    report(points, Console(), where, num_classes)
    if output is not None:
        record = {"where": where, "num_classes": num_classes, "points": [dataclasses.asdict(p) for p in points]}
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
