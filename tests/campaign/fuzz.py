"""Damaged files: what is read is what the file says, or an error that names the file. Nothing hangs or loads wrong."""

import bz2
import functools
import gzip
import lzma
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import candax as cx
from candax import data
from candax.data import vector_files
from candax.data.xml_repository import read_examples
from candax.files import read_arrays, write_arrays
from candax.recipes.common import finished
from candax.recipes.language import files as language_files
from candax.recipes.predict.histories import histories
from candax.recipes.predict.lines import source
from candax.recipes.predict.questions import questions
from candax.recipes.retrieval.features import read_table
from candax.recipes.sequences import files as sequence_files
from tests.campaign import references
from tests.campaign.mutations import BINARY, TEXT, Mutation
from tests.campaign.trials import BadError, Part


class Format(NamedTuple):
    """A file format.

    Attributes:
        name: of the file.
        write: writes one.
        load: gives something that ``==`` compares.
        reference: reads the same from the bytes of a text, by other means, or raises; None: damage must be noticed.
        mutations: that are tried.
    """

    name: str
    write: Callable[[Path], Any]
    load: Callable[[Path], Any]
    reference: Callable[[bytes], Any] | None
    mutations: list[Mutation]


def _plain(tree: Any) -> Any:
    return [(np.asarray(leaf).tolist(), str(np.asarray(leaf).dtype)) for leaf in jax.tree.leaves(tree)]


def _examples(path: Path) -> Any:
    found = read_examples(path)
    shapes = found.features.shape, found.labels.shape
    rows = [
        (
            dict(zip(f.indices.tolist(), f.data.tolist(), strict=True)),
            sorted(y.indices.tolist()),
        )
        for f, y in ((found.features[[i]], found.labels[[i]]) for i in range(len(found)))
    ]
    return shapes, rows


def _graph(path: Path) -> Any:
    found = data.graph(path)
    names, relations = found.entity_names, found.relation_names
    triples = np.concatenate([found.train, found.valid, found.test])
    return sorted((names[head], relations[relation], names[tail]) for head, relation, tail in triples)


def _label_counts(path: Path) -> Any:
    found = data.label_counts_of(path, "labels")
    return found.counts.tolist()


def _sequences(path: Path) -> Any:
    found = sequence_files.load(str(path))
    each = np.split(found.items, found.offsets[1:-1])
    return sorted([found.item_names[item] for item in of] for of in each)


def _histories(path: Path) -> Any:
    return [list(history) for history in histories(source(str(path)), Counter())]


def _questions(path: Path) -> Any:
    return [list(question) for question in questions(source(str(path)), Counter(), lambda question: True)]


def _model(path: Path) -> Any:
    found = finished.read(path)
    return found.task, found.about, found.names, _plain(found.weights), _plain(found.extra)


def _write_model(path: Path) -> None:
    weights, counts = {"a/b": np.ones((3, 2), np.float32)}, {"counts": np.arange(3)}
    finished.save(path.parent, "extreme", {"dim": 2}, weights, names={"classes": ["x", "y", "z"]}, extra=counts)


def _language(path: Path) -> Any:
    found = language_files.load(str(path))
    return [found.words[i] for i in np.concatenate([found.train, found.valid, found.test])]


def _vectors(path: Path) -> Any:
    words, vectors = vector_files.read(path)
    return dict(zip(words, vectors.tolist(), strict=True))


def _write_vectors(path: Path) -> None:
    vectors = np.arange(24, dtype=np.float32).reshape(8, 3) / 4 - 2
    vector_files.write(path, [f"word{i}" for i in range(8)], vectors)


def _write_arrays(path: Path) -> None:
    write_arrays(path, "campaign-1", {"of": "numbers"}, {"a": np.arange(40), "b": np.ones((3, 4), np.float32)})


def _write_index(path: Path) -> None:
    classes = cx.Classes(jax.random.normal(jax.random.key(0), (40, 4)))
    codes = "int8" if "int8" in path.name else "mean"
    retriever = cx.samplers.ivf_index(num_centers=2, hm_num=20, num_kept=20, codes=codes)
    cx.samplers.save_index(path, retriever, retriever.build(jax.random.key(1), classes), classes)


def _compressed(path: Path) -> None:
    with _open(path) as file:
        file.write(references.EXAMPLES.encode())


def _open(path: Path) -> Any:
    return {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}[path.suffix](path, "wb")


def _writes(text: str) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(text.encode())


FORMATS = [
    Format("examples.txt", _writes(references.EXAMPLES), _examples, references.examples, TEXT),
    *(Format(f"examples.txt{end}", _compressed, _examples, None, BINARY) for end in (".gz", ".bz2", ".xz")),
    Format("labels.txt", _writes(references.LABELS), _label_counts, references.label_counts, TEXT),
    Format("triples.tsv", _writes(references.TRIPLES), _graph, references.triples, TEXT),
    Format("shop.txt", _writes(references.SEQUENCES), _sequences, references.sequences, TEXT),
    Format("text.txt", _writes(references.LANGUAGE), _language, references.language, TEXT),
    Format("vectors.txt", _write_vectors, _vectors, references.vectors, TEXT),
    Format("arrays.safetensors", _write_arrays, lambda path: _plain(read_arrays(path, "campaign-1")), None, BINARY),
    Format("histories.txt", _writes(references.SEQUENCES), _histories, references.histories, TEXT),
    Format("features.tsv", _writes(references.FEATURES), read_table, references.features, TEXT),
    Format("questions.tsv", _writes(references.QUESTIONS), _questions, references.questions, TEXT),
    Format("model.safetensors", _write_model, _model, None, BINARY),
    *(
        Format(name, _write_index, lambda path: _plain(cx.samplers.load_index(path)[1:]), None, BINARY)
        for name in ("index.safetensors", "index.int8.safetensors")
    ),
]


@functools.cache
def _whole(number: int) -> tuple[bytes, Any]:
    """A file of a format as it should be, and what it loads as."""
    found = FORMATS[number]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, found.name)
        found.write(path)
        return path.read_bytes(), found.load(path)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """One file, damaged once or twice."""
    number = int(rng.integers(0, len(FORMATS)))
    of = FORMATS[number]
    content, expected = _whole(number)
    names = []
    for _ in range(int(rng.integers(1, 3))):
        mutation = of.mutations[int(rng.integers(0, len(of.mutations)))]
        content = mutation(content, rng) if content else content
        names.append(mutation.__name__)
    what = f"{of.name} by {' and '.join(names)}"
    path = folder / of.name
    path.write_bytes(content)
    try:
        found = of.load(path)
    except (ValueError, OSError) as error:
        if of.name not in str(error):
            raise BadError(f"{what}: an error that does not name the file: {error!r}") from error
        return of.name
    if found == expected:
        return of.name
    if of.reference is None:
        raise BadError(f"{what}: it loads, as something else")
    try:
        meant = of.reference(content)
    except Exception as error:
        raise BadError(f"{what}: it loads, and should not ({error!r})") from error
    if found != meant:
        raise BadError(f"{what}: it loads as\n{found}\nand says\n{meant}")
    return of.name


def _prepare() -> None:
    for number in range(len(FORMATS)):
        _whole(number)


PART = Part(trial, 10.0, _prepare)
