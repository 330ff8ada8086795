"""Random data sets, and a writer for the Extreme Classification Repository's text format."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from scipy.sparse import csr_array

from candax.data.examples import Dataset, Examples

# One line: labels, and features with their values as they are written.
Line = tuple[list[int], list[tuple[int, str]]]


def random_examples(
    seed: int, points: int = 20, num_features: int = 12, num_classes: int = 9, density: float = 0.4
) -> Examples:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(points, num_features)) * (generator.random((points, num_features)) < density)
    labels = generator.random((points, num_classes)) < density
    return Examples(csr_array(values.astype(np.float32)), csr_array(labels))


def random_dataset(seed: int, name: str = "random") -> Dataset:
    return Dataset(name, random_examples(seed), random_examples(seed + 1, points=7), None, tuple("abcdefgh\u00e9"))


def same_examples(a: Examples, b: Examples) -> bool:
    return all(
        x.shape == y.shape
        and x.dtype == y.dtype
        and all(np.array_equal(getattr(x, part), getattr(y, part)) for part in ("data", "indices", "indptr"))
        for x, y in ((a.features, b.features), (a.labels, b.labels))
    )


def same_dataset(a: Dataset, b: Dataset) -> bool:
    names = (a.name, a.feature_names, a.class_names) == (b.name, b.feature_names, b.class_names)
    return names and same_examples(a.train, b.train) and same_examples(a.test, b.test)


def line_text(line: Line) -> str:
    labels, features = line
    text = ",".join(map(str, labels))
    return " ".join([text, *(f"{i}:{value}" for i, value in features)]) if features else text + " " * (not text)


def file_text(lines: Sequence[Line], num_features: int, num_classes: int) -> str:
    return "".join(f"{text}\n" for text in (f"{len(lines)} {num_features} {num_classes}", *map(line_text, lines)))


def expected(lines: Sequence[Line], num_features: int, num_classes: int) -> Examples:
    """What the lines mean, by the slowest and simplest way."""
    rows = [[(i, np.float32(float(value))) for i, value in sorted(features)] for _, features in lines]
    ids = [sorted(labels) for labels, _ in lines]

    def offsets(parts: Sequence[Sequence[object]]) -> np.ndarray:
        return np.cumsum([0, *map(len, parts)]).astype(np.int32)

    values = np.array([value for row in rows for _, value in row], dtype=np.float32)
    feature_ids = np.array([i for row in rows for i, _ in row], dtype=np.int32)
    label_ids = np.array([i for row in ids for i in row], dtype=np.int32)
    return Examples(
        csr_array((values, feature_ids, offsets(rows)), shape=(len(lines), num_features)),
        csr_array((np.ones(len(label_ids), dtype=bool), label_ids, offsets(ids)), shape=(len(lines), num_classes)),
    )


NUM_FEATURES, NUM_CLASSES = 30, 20

values = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(min_value=-1e30, max_value=1e30).map(lambda number: f"{number:.17e}"),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["0", "-0", "1.", ".5", "+2", "1E3", "0.1000000000000000055511151231257827", "1e-60"]),
)
lines = st.tuples(
    st.lists(st.integers(0, NUM_CLASSES - 1), unique=True, max_size=5),
    st.lists(st.tuples(st.integers(0, NUM_FEATURES - 1), values), unique_by=lambda pair: pair[0], max_size=6),
)
