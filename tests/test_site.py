"""The site is built without a warning, and its links within itself lead somewhere."""

import importlib
import inspect
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import candax

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_links_and_anchors_exist(site):
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}
    anchors = {path: {unescape(name) for name in re.findall(r'\bid="([^"]+)"', text)} for path, text in pages.items()}
    wrong = []
    for path, text in pages.items():
        for link in re.findall(r'\b(?:href|src)="([^"]+)"', text):
            target, anchor = urldefrag(unescape(link))
            if re.match(r"\w+:", target) or target.startswith("//"):
                continue
            found = (path.parent / unquote(target)).resolve() if target else path
            found = found / "index.html" if found.is_dir() else found
            if not found.exists() or (anchor and found in anchors and unquote(anchor) not in {"", *anchors[found]}):
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert not wrong, wrong


def test_the_reference_lists_every_public_name(monkeypatch):
    """Against what can be imported: the names of each room that is a package, and the modules of the public face."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    hooks = importlib.import_module("hooks")
    listed = hooks._reference({})
    for room in hooks.ROOMS:
        module = importlib.import_module(room)
        public = {name for name in getattr(module, "__all__", ()) if not inspect.ismodule(getattr(module, name))}
        line = next(line for line in listed.splitlines() if f"({room}.md)" in line)
        assert not public - set(re.findall(r"`([\w.]+)`", line)), room
    modules = {name for name in candax.__all__ if inspect.ismodule(getattr(candax, name))}
    assert modules <= {room.rpartition(".")[2] for room in hooks.ROOMS}


def test_every_public_name_has_its_place(site):
    """Spot checks of rooms that define names in different ways; the list itself is made from what rooms export."""
    for room, names in {
        "candax": ("candax.models.head.Head", "candax.training.optimizer.Optimizer"),
        "candax.base": ("candax.base.Sampler", "candax.base.Loss"),
        "candax.samplers": ("candax.samplers.log_uniform.log_uniform", "candax.samplers.lsh.dwta.dwta"),
        "candax.training": ("candax.training.loop.fit",),
        "candax.data": ("candax.data.load",),
    }.items():
        page = (site / "reference" / room / "index.html").read_text(encoding="utf-8")
        for name in names:
            assert f'id="{name}"' in page, name
    notebook = (site / "notebooks" / "bias_and_variance" / "index.html").read_text(encoding="utf-8")
    assert "Output of the cell above" in notebook


def test_pictures_of_the_pages_are_those_that_their_programs_draw(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    import concepts
    import pictures

    monkeypatch.setattr(concepts, "OUT", tmp_path)
    monkeypatch.setattr(pictures, "OUT", tmp_path)
    monkeypatch.setattr(concepts, "DRAWS", 50)
    for draw in (*concepts.PICTURES, *pictures.PICTURES):
        draw()
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn < {path.name for path in (ROOT / "docs").glob("*.svg")}
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    assert not [name for name in drawn if f"{name})" not in pages]
