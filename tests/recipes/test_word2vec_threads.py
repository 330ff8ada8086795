"""JAX is asked for one thread where vectors are short, and nothing else is told so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from candax.recipes.words import threads

NAMES = ("PJRT_NPROC", "NPROC")
COUNT = """
import os
import jax.numpy as jnp
from candax.recipes.words.threads import one_thread
assert one_thread(100)
jnp.dot(jnp.ones((500, 500)), jnp.ones((500, 500))).block_until_ready()
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
print(sum("XLAEigen" in name for name in names))
"""


@pytest.fixture
def asked(monkeypatch):
    """What the environment says whenever JAX looks for its devices."""
    found = []
    monkeypatch.setattr(threads.jax, "devices", lambda: found.append(os.environ.get("PJRT_NPROC")))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.mark.parametrize(("dim", "expected"), [(100, ["1"]), (200, ["1"]), (201, [])])
def test_one_thread_for_short_vectors(asked, dim, expected):
    assert threads.one_thread(dim) == bool(expected)
    assert asked == expected
    assert "PJRT_NPROC" not in os.environ


@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_was_said_stays(asked, monkeypatch, name):
    monkeypatch.setenv(name, "4")
    assert not threads.one_thread(100)
    assert (asked, os.environ[name]) == ([], "4")


def test_not_where_there_are_other_devices(asked, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(threads.importlib.util, "find_spec", lambda name: name == "libtpu" or None)
    assert not threads.one_thread(100)
    monkeypatch.setattr(threads.importlib.util, "find_spec", lambda name: None)
    assert threads.one_thread(100)
    assert asked == ["1"]


def test_a_failure_leaves_nothing_behind(asked, monkeypatch):
    def fail():
        raise RuntimeError("no device")

    monkeypatch.setattr(threads.jax, "devices", fail)
    with pytest.raises(RuntimeError, match="no device"):
        threads.one_thread(100)
    assert "PJRT_NPROC" not in os.environ


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted as Linux shows them")
def test_xla_has_one_thread():
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}  # with several devices it takes one for each
    done = subprocess.run(
        [sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.split() == ["1"], done.stderr[-2000:]
