"""Every test here has a cache folder of its own."""

from pathlib import Path

import pytest

from candax.data import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("CANDAX_CACHE", str(folder))
    cache._warn_once.cache_clear()
    return folder
