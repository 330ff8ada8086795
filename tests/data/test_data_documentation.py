import doctest
import importlib
import pkgutil

import pytest

import candax.data

MODULES = ["candax.data", *(f"candax.data.{module.name}" for module in pkgutil.iter_modules(candax.data.__path__))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0
