"""What all tests share: run-time type checks, less time spent in the compiler, and which tests run when."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

import tests.compilation  # sets flags
import tests.typecheck  # noqa: F401  # the hook takes it from the loaded package

# Tracing makes and drops many objects, few of them in cycles: Python need not look for those after every 700.
gc.set_threshold(50_000, 10, 10)
# Every function of candax is type- and shape-checked (jaxtyping annotations, checked by beartype).
install_import_hook("candax", "tests.typecheck.typecheck")

from tests.compiled import compile_samplers  # noqa: E402  # it imports candax
from tests.contexts import share_contexts  # noqa: E402
from tests.tiers import ALL, CI_ONLY  # noqa: E402

compile_samplers()
share_contexts()
# Writing takes more time than reading saves, but in the programs that tests start.
jax.config.update("jax_enable_compilation_cache", False)
# A busy machine is no fault of a test's.
hypothesis.settings.register_profile("candax", deadline=None)
hypothesis.settings.load_profile("candax")

MAPPINGS = Path("/proc/self/maps")
# Tests of one file share what they compile, so each file goes to one worker. These take longest and go first, lest
# one of them is left for the end, when the other worker has nothing to do.
LONGEST = (
    "test_meshes.py",
    "test_examples.py",
    "test_samplers.py",
    "test_notebooks.py",
    "test_campaign.py",
    "test_doctests.py",
    "test_mutants.py",
    "test_step.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what a bare ``pytest`` leaves out, before options choose; and the longest files first."""
    found = set()
    for item in items:
        file = item.path.relative_to(Path(__file__).parent).as_posix()
        for name in {item.name, item.name.split("[")[0], *ALL} & CI_ONLY.get(file, set()):
            found.add((file, name))
            if item.get_closest_marker("slow") is None:
                item.add_marker("ci")
    # Only of files that were collected whole can be said that a name is wrong.
    if not any("::" in str(argument) for argument in config.args):
        files = {item.path.relative_to(Path(__file__).parent).as_posix() for item in items}
        wrong = {(file, name) for file in files & CI_ONLY.keys() for name in CI_ONLY[file]} - found
        missing = {file for file in CI_ONLY if not (Path(__file__).parent / file).exists()}
        if wrong or missing:
            raise pytest.UsageError(f"tests/tiers.py names tests that are not there: {sorted(wrong)} {sorted(missing)}")
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One file, one worker, in the order of the collection (unless ``--dist`` says otherwise)."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


@pytest.fixture(autouse=True, scope="module")
def room_for_programs() -> Iterator[None]:
    """A compiled program takes some 40 mappings; Linux gives a process 65,530, and XLA crashes where none is left."""
    yield
    if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > 40_000:
        jax.clear_caches()


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """For tests that send Ctrl-C: a shell lets programs in the background ignore it, and training then leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
