import os
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from data_helpers import same_dataset

from candax.data import Examples, python_stdlib
from candax.data.python_stdlib import Function, build, each_file, files_of, functions_of, is_test, library_of, words_of
from candax.recipes.extreme.setting import without_validation

SOURCE = '''
import os

@decorated(by=decorator)
def getHTTPName(first, /, second: annotated = default, *rest, third=None, **options) -> returned:
    """Reads the name, twice: the NAME."""
    local = first.strip(second)
    return os.path.join(local, *rest, third, options)

class FileReader(Base):
    attribute = outside_of_functions

    async def __aenter__(self):
        self._open_file()

    class Inner:
        @classmethod
        def make(cls, path):
            def nested(argument):
                return argument + cls.helper
            return lambda bound: nested(bound).path

if condition:
    def conditional():
        try:
            pass
        except ValueError as error:
            raise error
else:
    try:
        def alternative(): "docstring alone"
    finally:
        pass
'''


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parse_http_header", "parse http header"),
        ("HTTPServer", "http server"),
        ("getURL2Path", "get url 2 path"),
        ("__init__", "init"),
        ("Words, in a SENTENCE.", "words in a sentence"),
        ("_", ""),
    ],
)
def test_words(text: str, words: str) -> None:
    assert words_of(text) == words.split()


def test_functions_of_a_file(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": SOURCE})
    functions = functions_of(tmp_path / "m.py", "package/some_module.py")
    assert [function.identifiers for function in functions] == [
        {"local", "strip", "os", "path", "join"},
        {"_open_file"},
        {"nested", "argument", "helper", "bound"},
        {"ValueError", "error"},
        set(),
    ]
    assert functions[0].words == Counter(
        {
            "name:get": 1,
            "name:http": 1,
            "name:name": 1,
            "module:package": 1,
            "module:some": 1,
            "module:module": 1,
            "parameter:first": 1,
            "parameter:second": 1,
            "parameter:rest": 1,
            "parameter:third": 1,
            "parameter:options": 1,
            "docstring:reads": 1,
            "docstring:the": 2,
            "docstring:name": 2,
            "docstring:twice": 1,
        }
    )
    assert {word for word in functions[2].words if word.startswith("class:")} == {
        "class:file",
        "class:reader",
        "class:inner",
    }


def test_packages_are_named_without_init(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": "def f(): a"})
    assert functions_of(tmp_path / "m.py", "json/__init__.py") == [
        Function(Counter({"name:f": 1, "module:json": 1}), frozenset({"a"}))
    ]


@pytest.mark.parametrize("text", [b"def f(:", b"def f(): '\xff'", b"\0", b"# coding: nonsense\n", b"(" * 100_000])
def test_files_that_do_not_parse(tmp_path: Path, text: bytes) -> None:
    write(tmp_path, {"bad.py": text})
    names = ["bad.py", "missing.py"]
    assert list(each_file(names, lambda name: functions_of(tmp_path / name, name))) == [(name, None) for name in names]


def fake_library(folder: Path) -> Path:
    files: dict[str, str | bytes] = {
        f"module_{i}.py": f"def read_{i % 7}(path):\n    return open(path).common_{i % 3}().unique_{i}"
        for i in range(60)
    }
    files |= {
        "broken.py": "def f(:",
        "empty.py": "def nothing_used(self):\n    self",
        "site-packages/third.py": "def third(): party_one",
        "nested/dist-packages/third.py": "def third(): party_two",
        "text.txt": "def f(): no_python",
        "latin.py": b"# coding: latin-1\ndef f(): caf\xe9",
    }
    return write(folder, files)


def rows(examples: Examples, names: tuple[str, ...]) -> list[set[str]]:
    parts = np.split(examples.labels.indices, examples.labels.indptr[1:-1])
    return [{names[i] for i in part} for part in parts]


def test_a_library_becomes_a_data_set(tmp_path: Path) -> None:
    dataset = python_stdlib(fake_library(tmp_path / "lib"))
    assert dataset.name == "python-stdlib"
    assert dataset.class_names is not None
    assert dataset.feature_names is not None
    test_modules = [i for i in range(60) if is_test(f"module_{i}.py")]
    assert 0 < len(test_modules) < 20
    assert len(dataset.test) == len(test_modules)
    assert len(dataset.train) == 61 - len(test_modules)
    # In the order of paths, without what training files never use.
    expected = [{"open", f"common_{i % 3}"} for i in sorted(test_modules, key=lambda i: f"module_{i}.py")]
    assert rows(dataset.test, dataset.class_names) == expected
    trained = {f"unique_{i}" for i in range(60) if i not in test_modules}
    assert {name for name in dataset.class_names if name.startswith("unique")} == trained
    assert not {"path", "third", "party_one", "party_two", "no_python", "self"} & set(dataset.class_names)
    assert "caf\u00e9" in dataset.class_names
    assert "name:nothing" not in dataset.feature_names
    assert not any("third" in name for name in dataset.feature_names)
    counts = dataset.label_counts(dataset.train)
    assert (np.diff(counts) <= 0).all()
    assert counts.min() >= 1
    assert dataset.class_names[0] == "open"
    lengths = np.sqrt(dataset.train.features.multiply(dataset.train.features).sum(axis=1))
    np.testing.assert_allclose(lengths, 1, rtol=1e-6)


def test_examples_of_a_file_are_held_out_together(tmp_path: Path) -> None:
    texts = {f"m{i}.py": "\n".join(f"def f{j}(): x{j}" for j in range(1 + i % 3)) for i in range(40)}
    names = [name for name in sorted(texts) if not is_test(name)]
    dataset = build(write(tmp_path, texts), sorted(texts))
    of_each = [1 + int(name[1:-3]) % 3 for name in names]
    assert [len(numbers) for numbers in files_of(dataset)] == of_each
    assert np.concatenate(files_of(dataset)).tolist() == list(range(len(dataset.train)))
    held_out = without_validation(dataset)
    assert held_out.feature_names is not None
    modules = [
        {name for name, column in zip(held_out.feature_names, part.features.toarray().T, strict=True) if column.any()}
        for part in (held_out.train, held_out.test)
    ]
    shared = {name for name in modules[0] & modules[1] if name.startswith("module:")}
    assert shared <= {"module:m"}
    assert len(held_out.train) + len(held_out.test) == len(dataset.train)


def test_repeated_words_count_by_their_logarithm(tmp_path: Path) -> None:
    dataset = build(write(tmp_path, {"m.py": "def f(): \n 'a a a'\n x"}), ["m.py"])
    assert dataset.feature_names == ("docstring:a", "module:m", "name:f")
    values = np.array([1 + np.log(3), 1, 1])
    np.testing.assert_allclose(dataset.train.features.toarray()[0], values / np.linalg.norm(values), rtol=1e-6)


def test_cached_until_a_file_changes(tmp_path: Path, own_cache: Path) -> None:
    library = fake_library(tmp_path / "lib")
    first = python_stdlib(library)
    (path,) = own_cache.glob("*.safetensors")
    content, written = path.read_bytes(), path.stat().st_mtime_ns
    assert same_dataset(python_stdlib(library), first)
    assert path.stat().st_mtime_ns == written
    path.unlink()
    python_stdlib(library)
    assert path.read_bytes() == content
    write(library, {"module_0.py": "def other(): added_identifier"})
    assert "added_identifier" in (python_stdlib(library).class_names or ())
    write(library, {"module_0.py": "def other(): other_identifier"})  # of the same size
    os.utime(library / "module_0.py", ns=(0, 1))
    assert "other_identifier" in (python_stdlib(library).class_names or ())


def test_installations_share_the_key_of_the_library_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = fake_library(tmp_path / "lib")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(library)})
    first = library_of().key
    os.utime(library / "module_0.py", ns=(0, 1))
    assert library_of().key == first != library_of(library).key


def test_the_key_holds_versions(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = fake_library(tmp_path / "lib")
    python_stdlib(library)
    (path,) = own_cache.glob("*.safetensors")
    seen = [path.read_bytes()]
    for owner, name, value in ((sys, "version", "3.99.0"), (build_module(), "BUILDER_VERSION", 10**6)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            python_stdlib(library)
        seen.append(path.read_bytes())
    assert len(set(seen)) == 3


def build_module() -> object:
    """The package gives the function of this name."""
    return sys.modules["candax.data.python_stdlib"]


def test_the_same_bytes_under_any_hash_seed(tmp_path: Path) -> None:
    library = fake_library(tmp_path / "lib")
    program = f"from candax.data.python_stdlib import python_stdlib; python_stdlib({str(library)!r})"
    contents = set()
    for seed in ("1", "2"):
        folder = tmp_path / f"cache-{seed}"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "CANDAX_CACHE": str(folder)}
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)
        (path,) = folder.glob("*.safetensors")
        contents.add(path.read_bytes())
    assert len(contents) == 1


def test_a_folder_without_python_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found none for training in 0 files"):
        python_stdlib(tmp_path)


def test_part_of_the_real_library() -> None:
    root = Path(sysconfig.get_paths()["stdlib"])
    names = sorted(
        path.relative_to(root).as_posix() for part in ("email", "json") for path in (root / part).glob("*.py")
    )
    dataset = build(root, names)
    assert dataset.class_names is not None
    assert {"isinstance", "JSONDecodeError", "_payload"} <= set(dataset.class_names)
    assert len(dataset.train) > 100
    assert len(dataset.test) > 0


@pytest.mark.slow
def test_the_real_library() -> None:
    dataset = python_stdlib()
    assert dataset.num_classes > 10_000
    assert dataset.num_features > 5_000
    assert 0.05 < len(dataset.test) / (len(dataset.train) + len(dataset.test)) < 0.2
    assert not {"self", "cls"} & set(dataset.class_names or ())
    counts = dataset.label_counts(dataset.train)
    # A long tail: half of the labels occur once or twice, and no label is in most examples.
    assert np.median(counts) <= 2
    assert counts[0] < 0.4 * len(dataset.train)
    for examples in (dataset.train, dataset.test):
        assert np.diff(examples.labels.indptr).min() >= 1
        assert np.diff(examples.features.indptr).min() >= 1
    assert same_dataset(python_stdlib(), dataset)
