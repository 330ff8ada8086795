"""The standard library as sequences and as a graph, on small files."""

import numpy as np
import pytest

from candax.data import python_graph, python_interactions

SOURCE = """
import os.path
from json import decoder, loads

class Base(Exception):
    pass

class Child(Base, loads.Other):
    class Inner: pass

    def close(self, path):
        os.path.exists(path)
        self.closed = os.path.join(path)
        raise Base(path)
"""


@pytest.fixture
def library(tmp_path):
    for name, text in {
        "pack/mod.py": SOURCE,
        "json/__init__.py": "",
        "json/decoder.py": "def f(x):\n    return a(b(x))\n",
        "test/test_mod.py": "def t(x): return b",
        "broken.py": "def (",
    }.items():
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(text)
    return tmp_path / "lib"


def test_the_graph_of_a_library(library):
    for _ in range(2):  # built, and from the cache; without the tests
        graph = python_graph(library, min_count=1)
        assert len(graph.valid) + len(graph.test) <= 3
        every = np.concatenate([graph.train, graph.valid, graph.test]).tolist()
        names, relations = graph.entity_names, graph.relation_names
        assert {(names[h], relations[r], names[t]) for h, r, t in every} == {
            ("module:pack.mod", "imports", "module:os.path"),
            ("module:pack.mod", "imports", "module:json"),
            ("module:pack.mod", "imports", "module:json.decoder"),
            ("module:pack.mod", "contains", "class:pack.mod.Base"),
            ("class:pack.mod.Base", "named", "name:Base"),
            ("class:pack.mod.Base", "inherits", "name:Exception"),
            ("module:pack.mod", "contains", "class:pack.mod.Child"),
            ("class:pack.mod.Child", "named", "name:Child"),
            ("class:pack.mod.Child", "inherits", "class:pack.mod.Base"),
            ("class:pack.mod.Child", "inherits", "name:Other"),
            ("class:pack.mod.Child", "contains", "class:pack.mod.Child.Inner"),
            ("class:pack.mod.Child.Inner", "named", "name:Inner"),
            ("class:pack.mod.Child", "defines", "function:pack.mod.Child.close"),
            ("function:pack.mod.Child.close", "named", "name:close"),
            ("function:pack.mod.Child.close", "calls", "name:exists"),
            ("function:pack.mod.Child.close", "calls", "name:join"),
            ("function:pack.mod.Child.close", "calls", "name:Base"),
            ("function:pack.mod.Child.close", "raises", "name:Base"),
            ("module:json.decoder", "defines", "function:json.decoder.f"),
            ("function:json.decoder.f", "named", "name:f"),
            ("function:json.decoder.f", "calls", "name:a"),
            ("function:json.decoder.f", "calls", "name:b"),
        }
    assert all(not name.startswith("name:") or name == "name:Base" for name in python_graph(library).entity_names)


def test_what_the_functions_of_a_library_use_in_order(library):
    found = python_interactions(library, min_count=1)
    names = np.array(found.item_names)
    used = [names[part].tolist() for part in np.split(found.items, found.offsets[1:-1])]
    # A parameter has the name path.
    assert used == [["a", "b"], ["os", "exists", "closed", "join", "Base"], ["b"]]
