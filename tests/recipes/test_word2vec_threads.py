"""JAX is asked for one thread where vectors are short, and nothing else is told so."""

import os

import pytest

from candax.recipes.words import threads


@pytest.mark.parametrize(
    ("dim", "said", "expected"), [(100, None, ["1"]), (200, None, ["1"]), (201, None, []), (100, "4", [])]
)
def test_one_thread_for_short_vectors(monkeypatch, dim, said, expected):
    found = []
    monkeypatch.setattr(threads.jax, "devices", lambda: found.append(os.environ.get("PJRT_NPROC")))
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    if said is not None:
        monkeypatch.setenv("PJRT_NPROC", said)
    threads.one_thread(dim)
    assert found == expected
    assert os.environ.get("PJRT_NPROC") == said
