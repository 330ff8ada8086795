"""Two more data sets that every machine has, from Python's standard library: identifiers in order, and a graph.

The graph leaves out the library's own tests, which make up most of its code and which many installations do not have.
"""

import ast
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import TypeVar

from candax.checks import check_positive, checked
from candax.data.cache import cached, form_of
from candax.data.graphs import Graph, Triple, graph_of
from candax.data.interactions import Interactions, Row, interactions_of
from candax.data.python_stdlib import Library, definitions_of, each_file, library_of, parameters_of

BUILDER_VERSION = 2
_TESTS = {"test", "tests", "idle_test"}
_NAME = "python-stdlib"
T = TypeVar("T")


@checked
def python_interactions(stdlib: str | os.PathLike[str] | None = None, *, min_count: int = 2) -> Interactions:
    """The functions of Python's standard library as users and the identifiers that they use as their items, in order.

    Functions are those of modules and classes. Their items are the names and attributes in their bodies, except
    ``self``, ``cls`` and their own parameters, each at its first occurrence. The library's own tests are part of the
    data; installations without them give fewer functions.

    Args:
        stdlib: the library's folder; None: that of the Python in use.
        min_count: identifiers that fewer functions use are left out.

    Returns:
        The interactions. They are read anew each time, which takes some seconds.
    """
    return interactions_of(_NAME, _found(library_of(stdlib), _uses), min_count=min_count)


@checked
def python_graph(stdlib: str | os.PathLike[str] | None = None, *, min_count: int = 2) -> Graph:
    r"""What belongs to what in Python's standard library, as a graph.

    Entities are modules (``module:json``), classes (``class:json.decoder.JSONDecoder``), functions and methods
    (``function:json.loads``), and the names by which code calls, raises and inherits (``name:append``). Relations:

        imports    module -> module             calls     function -> name
        defines    module or class -> function  raises    function -> name
        contains   module or class -> class     inherits  class -> class of the same module, or name
        named      function or class -> name

    Args:
        stdlib: the library's folder; None: that of the Python in use.
        min_count: names that are the tail of fewer triples are left out.

    Returns:
        The graph, split as ``graph_of`` does.

    Raises:
        ValueError: if the folder holds nothing to make triples of.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from unittest import mock
        >>> with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, CANDAX_CACHE=folder):
        ...     _ = Path(folder, "greet.py").write_text("import sys\ndef say(name):\n    print(name)\n    sys.exit()")
        ...     graph = python_graph(folder, min_count=1)
        >>> names = graph.entity_names
        >>> for head, relation, tail in sorted(graph.train.tolist(), key=lambda triple: names[triple[2]]):
        ...     print(names[head], graph.relation_names[relation], names[tail])
        module:greet defines function:greet.say
        module:greet imports module:sys
        function:greet.say calls name:exit
        function:greet.say calls name:print
        function:greet.say named name:say
    """
    check_positive("min_count", min_count)
    library = library_of(stdlib, without=_TESTS)

    def build() -> Graph:
        triples = list(dict.fromkeys(_found(library, _triples)))
        uses = Counter(triple.tail for triple in triples)
        kept = (t for t in triples if not t.tail.startswith("name:") or uses[t.tail] >= min_count)
        return graph_of(_NAME, kept)

    key = {"builder": BUILDER_VERSION, "min_count": min_count, **library.key}
    return cached("python-graph", library.identity, key, build, form_of(Graph))


def _found(library: Library, visit: Callable[[ast.Module, str, set[str]], Iterator[T]]) -> Iterator[T]:
    """What ``visit`` finds in each file that parses, given its tree, its module and the names of all modules."""
    modules = {name: _module(name) for name in library.names}
    known = set(modules.values())

    def read(name: str) -> list[T]:
        return list(visit(ast.parse((library.root / name).read_bytes()), modules[name], known))

    for _, found in each_file(library.names, read):
        yield from found or ()


def _module(name: str) -> str:
    parts = PurePosixPath(name).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _uses(tree: ast.Module, module: str, modules: set[str]) -> Iterator[Row]:
    del modules
    for function, classes in definitions_of(tree, ()):
        user = f"{'.'.join((module, *classes, function.name))}:{function.lineno}"
        hidden = {"self", "cls", *parameters_of(function)}
        used = [node for part in function.body for node in ast.walk(part) if isinstance(node, ast.Name | ast.Attribute)]
        # Sorted by where they end, so that in a.b the name a comes first.
        used.sort(key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
        in_order = dict.fromkeys(node.id if isinstance(node, ast.Name) else node.attr for node in used)
        for item in in_order:
            if item not in hidden:
                yield Row(user, item)


def _triples(tree: ast.Module, module: str, modules: set[str]) -> Iterator[Triple]:
    here = f"module:{module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Triple(here, "imports", f"module:{alias.name}")
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield Triple(here, "imports", f"module:{node.module}")
            for alias in node.names:
                if f"{node.module}.{alias.name}" in modules:
                    yield Triple(here, "imports", f"module:{node.module}.{alias.name}")
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    yield from _classes(tree.body, module, (), own)
    for function, classes in definitions_of(tree, ()):
        owner = f"class:{'.'.join((module, *classes))}" if classes else here
        name = f"function:{'.'.join((module, *classes, function.name))}"
        yield Triple(owner, "defines", name)
        yield Triple(name, "named", f"name:{function.name}")
        for part in (node for statement in function.body for node in ast.walk(statement)):
            if isinstance(part, ast.Call) and (called := _last_name(part.func)):
                yield Triple(name, "calls", f"name:{called}")
            elif isinstance(part, ast.Raise) and part.exc is not None:
                raised = part.exc.func if isinstance(part.exc, ast.Call) else part.exc
                if error := _last_name(raised):
                    yield Triple(name, "raises", f"name:{error}")


def _classes(body: list[ast.stmt], module: str, outer: tuple[str, ...], own: set[str]) -> Iterator[Triple]:
    for node in body:
        if not isinstance(node, ast.ClassDef):
            continue
        name = f"class:{'.'.join((module, *outer, node.name))}"
        owner = f"class:{'.'.join((module, *outer))}" if outer else f"module:{module}"
        yield Triple(owner, "contains", name)
        yield Triple(name, "named", f"name:{node.name}")
        for base in node.bases:
            if parent := _last_name(base):
                local = isinstance(base, ast.Name) and parent in own and parent != node.name
                yield Triple(name, "inherits", f"class:{module}.{parent}" if local else f"name:{parent}")
        yield from _classes(node.body, module, (*outer, node.name), own)


def _last_name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
