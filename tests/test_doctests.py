"""Every example in a docstring runs and prints what it says."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

import candax

PACKAGE = Path(candax.__file__).parent
README = PACKAGE.parent / "README.md"


def examples() -> list[doctest.DocTest]:
    """Read from the source: a finder that imports would pass over decorated functions."""
    found, parser = [], doctest.DocTestParser()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and ">>>" in text:
                    name = f"{module}.{getattr(node, 'name', '')}".rstrip(".")
                    found.append(parser.get_doctest(text, {"module": module}, name, str(path), None))
    if README.exists():
        text = README.read_text(encoding="utf-8")
        if ">>>" in text:
            found.append(parser.get_doctest(text, {}, "README", str(README), None))
    return found


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_example(example: doctest.DocTest) -> None:
    """Module-level names of the example's own module may be used without importing them."""
    example = doctest.DocTest(
        example.examples, dict(example.globs), example.name, example.filename, example.lineno, example.docstring
    )
    module = example.globs.pop("module", None)
    if module is not None:
        example.globs.update(vars(importlib.import_module(module)))
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    result = runner.run(example, out=report.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(report)
