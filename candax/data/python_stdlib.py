"""A data set that every machine has: the functions of Python's standard library.

One example per function or method: from its name, signature and documentation to the identifiers its body uses.
"""

import ast
import contextlib
import gc
import hashlib
import itertools
import os
import re
import sys
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.sparse import csr_array

from candax.checks import checked
from candax.data.cache import cached
from candax.data.examples import Dataset, Examples, from_counts
from candax.data.progress import progress_bar

BUILDER_VERSION = 1
_THIRD_PARTY = {"site-packages", "dist-packages", "__pycache__"}
_TEST_ONE_IN = 10
# "HTTPServer_2" is http, server, 2.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_MODULE = "module"
_INVALID = (OSError, SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError)
T = TypeVar("T")


class Function(NamedTuple):
    """One function: how often each word describes it, and the identifiers of its body."""

    words: Counter[str]
    identifiers: frozenset[str]


@checked
def python_stdlib(stdlib: str | os.PathLike[str] | None = None) -> Dataset:
    r"""Predict the identifiers that a function of Python's standard library uses from how it presents itself.

    *Examples* are the functions and methods of modules and classes; a function inside another one is part of the
    other's body. Files that do not parse, packages of third parties, and functions left without a feature or a label
    are left out. The library's own tests are part of it; installations without them give fewer examples.

    *Features* are the words, in small letters and split at underscores and capitals, of the function's name, class,
    module path, parameters and docstring. A word counts separately in each of these five places: ``name:get`` is not
    ``docstring:get``. Values are 1 + log(occurrences), scaled to Euclidean length 1 per example.

    *Labels* are the names and attributes in the body (``ast.Name`` and ``ast.Attribute``), except ``self``, ``cls`` and
    the function's own parameters, which the features would give away. The function's decorators, defaults and
    annotations are not part of the body.

    One file in ten, by a hash of its path, is for testing. Only what training files hold has an id (the most frequent
    first, ties in alphabetical order): other features and labels of test functions are dropped. The same Python gives
    the same data set, bit for bit.

    Args:
        stdlib: The library's folder; None: that of the Python in use.

    Returns:
        The data set, with names.

    Raises:
        ValueError: If the folder holds too few functions for a training set.

    Example:
        >>> import tempfile
        >>> from unittest import mock
        >>> with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, CANDAX_CACHE=folder):
        ...     _ = Path(folder, "greet.py").write_text("def sayHello(name):\n    print(greeting.format(name))")
        ...     dataset = python_stdlib(folder)
        >>> dataset.feature_names
        ('module:greet', 'name:hello', 'name:say', 'parameter:name')
        >>> dataset.class_names
        ('format', 'greeting', 'print')
    """
    library = library_of(stdlib)
    key = {"builder": BUILDER_VERSION, **library.key}
    return cached("python-stdlib", library.identity, key, lambda: build(library.root, library.names))


def build(root: Path, names: list[str]) -> Dataset:
    """Builds the data set from Python files of these names (with slashes, sorted) in a folder.

    Raises:
        ValueError: If no function of a training file has a feature and a label.
    """
    train: list[Function] = []
    test: list[Function] = []
    unparsed = 0
    for name, found in each_file(names, lambda name: functions_of(root / name, name)):
        if found is None:
            unparsed += 1
        else:
            (test if is_test(name) else train).extend(found)
    features = _ranked(word for function in train if function.identifiers for word in function.words)
    labels = _ranked(identifier for function in train if function.words for identifier in function.identifiers)
    if not labels:
        raise ValueError(
            f"expected Python functions in {root} to make a data set of; found none for training in {len(names)} "
            f"files, {unparsed} of which do not parse: is the standard library installed as source files?"
        )
    return Dataset(
        "python-stdlib",
        _examples(train, features, labels),
        _examples(test, features, labels),
        tuple(features),
        tuple(labels),
    )


def files_of(dataset: Dataset) -> list[np.ndarray]:
    """Numbers of the training examples, those of a file together: neighbours with the same words for their module.

    Test examples are of other files than training examples; so should those be on which settings are chosen.
    """
    assert dataset.feature_names is not None
    of_module = np.array([name.startswith(f"{_MODULE}:") for name in dataset.feature_names])
    features = csr_array(dataset.train.features)
    rows = (features.indices[start:stop] for start, stop in itertools.pairwise(features.indptr))
    modules = [np.sort(row[of_module[row]]).tobytes() for row in rows]
    starts = [number for number in range(1, len(modules)) if modules[number] != modules[number - 1]]
    return np.split(np.arange(len(modules)), starts)


def functions_of(path: Path, name: str) -> list[Function]:
    """Functions and methods of a file, in its order. ``name`` is its path in the library."""
    module = PurePosixPath(name).with_suffix("").parts
    module = module[:-1] if module[-1] == "__init__" else module
    return [_function(node, classes, module) for node, classes in definitions_of(_parsed(path.read_bytes()), ())]


def _parsed(source: bytes) -> ast.Module:
    """The syntax tree. It is made of so many objects, none of which is garbage, that looking for garbage among them
    would take as long as parsing.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collects:
            gc.enable()


def is_test(name: str) -> bool:
    """Whether the file of this path belongs to the test set: one in ten does, whatever other files there are."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") % _TEST_ONE_IN == 0


def words_of(text: str) -> list[str]:
    """The words of an identifier or a sentence, in small letters.

    Example:
        >>> words_of("_parseHTTPHeader2")
        ['parse', 'http', 'header', '2']
    """
    return [word.lower() for word in _WORD.findall(text)]


def definitions_of(
    node: ast.AST, classes: tuple[str, ...]
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, tuple[str, ...]]]:
    """All functions that are in no other function, each with the classes it is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child, classes
        elif isinstance(child, ast.ClassDef):
            yield from definitions_of(child, (*classes, child.name))
        elif not isinstance(child, ast.expr):
            yield from definitions_of(child, classes)


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The names of all parameters."""
    every = function.args
    arguments = (*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg)
    return [argument.arg for argument in arguments if argument is not None]


def _function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, classes: tuple[str, ...], module: tuple[str, ...]
) -> Function:
    parameters = parameters_of(node)
    places = {
        "name": [node.name],
        "class": classes,
        _MODULE: module,
        "parameter": parameters,
        "docstring": [ast.get_docstring(node, clean=False) or ""],
    }
    words = Counter(f"{place}:{word}" for place, texts in places.items() for text in texts for word in words_of(text))
    return Function(words, frozenset(_used(node.body) - {"self", "cls", *parameters}))


def _used(body: list[ast.stmt]) -> set[str]:
    """The names and attributes in a function's body. ``ast.walk`` would take three times as long."""
    used: set[str] = set()
    left: list[ast.AST] = list(body)
    while left:
        part = left.pop()
        if isinstance(part, ast.Name):
            used.add(part.id)
            continue
        if isinstance(part, ast.Attribute):
            used.add(part.attr)
        for value in vars(part).values():
            if isinstance(value, list):
                left.extend(item for item in value if isinstance(item, ast.AST))
            elif isinstance(value, ast.AST):
                left.append(value)
    return used


def _ranked(occurrences: Iterator[str]) -> dict[str, int]:
    counts = Counter(occurrences)
    return {name: rank for rank, name in enumerate(sorted(counts, key=lambda name: (-counts[name], name)))}


def _examples(functions: list[Function], features: dict[str, int], labels: dict[str, int]) -> Examples:
    known = [
        (
            {features[word]: count for word, count in function.words.items() if word in features},
            {labels[identifier]: 1 for identifier in function.identifiers if identifier in labels},
        )
        for function in functions
    ]
    kept = [(words, identifiers) for words, identifiers in known if words and identifiers]
    features_matrix = _matrix([words for words, _ in kept], len(features))
    values = 1 + np.log(features_matrix.data)
    rows = np.repeat(np.arange(len(kept)), np.diff(features_matrix.indptr))
    lengths = np.sqrt(np.bincount(rows, weights=values**2, minlength=len(kept)))
    features_matrix.data = values / lengths[rows]
    labels_matrix = _matrix([identifiers for _, identifiers in kept], len(labels))
    return Examples(features_matrix.astype(np.float32), labels_matrix.astype(bool))


def _matrix(rows: list[dict[int, int]], columns: int) -> csr_array:
    ids = np.array([i for row in rows for i in sorted(row)], dtype=np.int32)
    data = np.array([row[i] for row in rows for i in sorted(row)], dtype=np.float64)
    return from_counts(data, ids, np.array([len(row) for row in rows], dtype=np.int64), columns)


class Library(NamedTuple):
    """Python's standard library.

    Attributes:
        root: its folder.
        files: paths of Python files in it, with slashes and sorted, and their sizes.
        times: when they were changed; none of the library of the Python in use, which its version tells.
    """

    root: Path
    files: list[tuple[str, int]]
    times: list[int]

    @property
    def names(self) -> list[str]:
        """The paths of the files."""
        return [name for name, _ in self.files]

    @property
    def identity(self) -> str:
        """For the cache: version and path, as versions of Python may share the cache and the path of their library."""
        return f"{sys.implementation.cache_tag} {self.root}"

    @property
    def key(self) -> dict[str, object]:
        """For the cache: what a data set of these files depends on."""
        told = (self.files, self.times) if self.times else self.files
        digest = hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()
        return {"python": f"{sys.implementation.name} {sys.version}", "files": digest}


def library_of(stdlib: str | os.PathLike[str] | None = None, *, without: Collection[str] = ()) -> Library:
    """The library in a folder, by default that of the Python in use; subfolders named in ``without`` are left out."""
    root = Path(sysconfig.get_paths()["stdlib"] if stdlib is None else stdlib).resolve()
    files: list[tuple[str, int, int]] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _THIRD_PARTY and name not in without]
        for name in names:
            path = Path(folder, name)
            if path.suffix == ".py" and path.is_file():
                stat = path.stat()
                files.append((path.relative_to(root).as_posix(), stat.st_size, stat.st_mtime_ns))
    files.sort()
    times = [] if stdlib is None else [time for _, _, time in files]
    return Library(root, [(name, size) for name, size, _ in files], times)


def each_file(names: Sequence[str], read: Callable[[str], T]) -> Iterator[tuple[str, T | None]]:
    """Each name with what ``read`` returns for it, under a progress bar.

    None for a file that cannot be read, is not valid Python, or is too deep for the parser.
    """
    with progress_bar("reading the standard library", len(names)) as done:
        for number, name in enumerate(names):
            found = None
            # Warnings are of odd escapes in the library's tests, and the like.
            with warnings.catch_warnings(action="ignore"), contextlib.suppress(*_INVALID):
                found = read(name)
            yield name, found
            done(number + 1)
