"""A data set that every machine has: the functions of Python's standard library.

One example a function or method: from its name, signature and documentation to the identifiers its body uses.
"""

import ast
import gc
import hashlib
import os
import re
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

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
    module path, parameters and docstring. A word counts apart in each of these five places: ``name:get`` is not
    ``docstring:get``. Values are 1 + log(occurrences), scaled to Euclidean length 1 an example.

    *Labels* are the names and attributes in the body (``ast.Name`` and ``ast.Attribute``), except ``self``, ``cls`` and
    the function's own parameters, which the features would give away. Decorators, defaults and annotations are not
    body.

    One file in ten, by a hash of its path, is for testing. Only what training files hold has an id (the most frequent
    first, equals in alphabetical order): other features and labels of test functions are dropped. The same Python gives
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
    root = Path(sysconfig.get_paths()["stdlib"] if stdlib is None else stdlib).resolve()
    files = library_files(root)
    key = {
        "builder": BUILDER_VERSION,
        "python": f"{sys.implementation.name} {sys.version}",
        "files": digest_of(files),
    }
    # Different versions of Python may share a cache folder, and under it a library's path.
    identity = f"{sys.implementation.cache_tag} {root}"
    return cached("python-stdlib", identity, key, lambda: build(root, [name for name, _ in files]))


def build(root: Path, names: list[str]) -> Dataset:
    """Builds the data set from Python files.

    Args:
        root: The library's folder.
        names: Paths of files in it, with slashes, sorted.

    Returns:
        The data set.

    Raises:
        ValueError: If no function of a training file has a feature and a label.
    """
    train: list[Function] = []
    test: list[Function] = []
    unparsed = 0
    with progress_bar("reading the standard library", len(names)) as done:
        for number, name in enumerate(names):
            found = functions_of(root / name, name)
            if found is None:
                unparsed += 1
            else:
                (test if is_test(name) else train).extend(found)
            done(number + 1)
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


def functions_of(path: Path, name: str) -> list[Function] | None:
    """The functions and methods of one file, in its order; None if it cannot be parsed.

    Args:
        path: The file.
        name: Its path in the library, with slashes; its parts are features.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as odd escapes in the library's tests
            tree = _parsed(path.read_bytes())
            module = PurePosixPath(name).with_suffix("").parts
            module = module[:-1] if module[-1] == "__init__" else module
            return [_function(node, classes, module) for node, classes in definitions_of(tree, ())]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # the last one: too deep for the parser
        return None


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
    """Whether the file of this path belongs to the test set: one in ten does, whatever else is there."""
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


def _function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, classes: tuple[str, ...], module: tuple[str, ...]
) -> Function:
    every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
    parameters = [argument.arg for argument in every if argument is not None]
    places = {
        "name": [node.name],
        "class": classes,
        "module": module,
        "parameter": parameters,
        "docstring": [ast.get_docstring(node, clean=False) or ""],
    }
    words = Counter(f"{place}:{word}" for place, texts in places.items() for text in texts for word in words_of(text))
    return Function(words, frozenset(_used(node.body) - {"self", "cls", *parameters}))


def _used(body: list[ast.stmt]) -> set[str]:
    """The names and attributes in it. ``ast.walk`` would take three times as long."""
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


def library_files(root: Path) -> list[tuple[str, int]]:
    """All Python files of the library with their sizes, in the order of their paths."""
    files = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _THIRD_PARTY]
        for name in names:
            path = Path(folder, name)
            if path.suffix == ".py" and path.is_file():
                files.append((path.relative_to(root).as_posix(), path.stat().st_size))
    return sorted(files)


def digest_of(files: list[tuple[str, int]]) -> str:
    """A short text that differs where names or sizes do."""
    return hashlib.blake2b(repr(files).encode(), digest_size=16).hexdigest()
