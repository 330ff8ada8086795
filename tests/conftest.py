"""What all tests share: run-time type checks, and less time spent in the compiler."""

from typing import Any

import pytest
from jaxtyping import install_import_hook

import tests.compilation  # sets flags
import tests.typecheck  # noqa: F401  # the hook takes it from the loaded package

# Every function of candax is type- and shape-checked (jaxtyping annotations, checked by beartype).
install_import_hook("candax", "tests.typecheck.typecheck")

# Tests of one file share what they compile, so each file goes to one worker. These take longest and go first, lest
# one of them is left for the end, when the other worker has nothing to do.
LONGEST = ("test_class_parallel.py", "test_samplers.py", "test_step.py", "test_losses.py", "test_doctests.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One file, one worker, in the order of the collection (unless ``--dist`` says otherwise)."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)
