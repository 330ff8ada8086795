"""The pages under docs/: what they show runs, commands are commands of the program, and links lead somewhere."""

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from scipy.sparse import csr_array

import candax as cx
from candax import cli
from tests.training import problems

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
# Of test_examples.py and recipes/test_predict_page.py.
ELSEWHERE = {
    *("front_door.md", "language.md", "predict.md"),
    *("recipes/extreme.md", "recipes/links.md", "recipes/sequences.md"),
}
Names = dict[str, Any]


def blocks(page: str, language: str = "python") -> list[str]:
    """The code of a page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


def smaller(code: str, **_: Any) -> str:
    """A program of few classes."""
    return code.replace("128_000", "500").replace("1_000_000", "5000").replace("8192", "64")


def start(names: Names, code: list[str]) -> None:
    notebook, loop = code
    assert len([line for line in notebook.splitlines() if line.strip()]) <= 15
    assert "num_steps=300" in notebook
    # As a user runs it, and quicker: the suite's compilation without optimisation does not pay for so many steps.
    check = notebook.replace("num_steps=300", "num_steps=30").replace("cx.training.fit(", "run = cx.training.fit(")
    check += "\nprint('steps', run.step)"
    environment = {**os.environ, "XLA_FLAGS": ""}
    done = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "p_at_1" in done.stdout
    assert "steps 30" in done.stdout
    exec(smaller(blocks("guides/frameworks.md")[0]), names)
    tokens = np.random.default_rng(0).integers(0, 500, (2, 6))
    exec(loop, names | {"held_out": [(tokens, tokens)], "batches": [(tokens, tokens)] * 3})
    assert cx.training.load("runs/lm", lambda: names["model"]).step == 9


def frameworks(names: Names, code: list[str]) -> None:
    modules, imports, linen, equinox, plain, step, dense = map(smaller, code)
    exec(modules, names)
    tokens = np.random.default_rng(0).integers(0, 500, (2, 6))
    losses = [names["train_step"](names["model"], names["optimizer"], tokens, tokens, tokens > 9) for _ in range(8)]
    assert losses[-1] < losses[0]
    bodies = [linen, plain, *([equinox] if importlib.util.find_spec("equinox") else [])]
    before, loop = re.split(r"\n(?=key = )", step)
    for body in bodies:
        names = {"__name__": "page"}
        exec(imports + body + before, names)
        asked = jnp.arange(32), jnp.arange(32), jax.random.key(2)
        first = names["loss_fn"](names["tables"], names["params"], *asked)
        exec(loop, names)
        assert names["loss_fn"](names["tables"], names["params"], *asked) < first
    exec(dense, names)
    assert np.isfinite(names["loss_fn"](names["params"], tokens, tokens, jax.random.key(2)))


def samplers_and_losses(names: Names, code: list[str]) -> None:
    (margins,) = code
    exec(margins, names)
    assert callable(names["loss"])


def devices(names: Names, code: list[str]) -> None:
    some, parts, million = code
    exec(blocks("guides/samplers_and_losses.md")[0], names)
    encoder = cx.models.SparseMLP(9, 8, rngs=nnx.Rngs(0))
    batch = cx.data.Batch(np.zeros((8, 3), np.int32), np.ones((8, 3), np.float32), np.zeros((8, 1), np.int32))
    names |= {"encoder": encoder, "data": SimpleNamespace(num_classes=5000), "counts": np.ones(5000)}
    exec(some.replace("128", "8").replace("loss=loss", "loss=cx.losses.css"), names)
    names["data"].train = cx.data.Examples(csr_array(np.eye(9, dtype=np.float32)), csr_array(np.eye(9, 50, dtype=bool)))
    exec(parts.replace("256", "4"), names)
    assert names["batches"].batches_per_epoch == 2
    made = [(names["model"], cx.Optimizer(names["model"], optax.adam(1e-3)))]
    for mesh in ("mesh = None", "mesh = cx.training.class_mesh()"):
        exec(smaller(million).replace("mesh = None", mesh), names)
        made.append((names["model"], names["optimizer"]))
    for model, optimizer in made:
        assert model.head.num_classes == 5000
        assert np.isfinite(problems.train_step(model, optimizer, batch))


def serving(names: Names, code: list[str]) -> None:
    exported, search = code
    Path("runs/train/export").mkdir(parents=True)
    for part, array in {"vectors": np.eye(12, 4), "biases": np.arange(12.0), "ids": np.arange(12)}.items():
        np.save(f"runs/train/export/head.class_{part}.npy", array)
    exec(exported, names)
    assert names["found"][0, :2].tolist() == [11, 10]
    exec(search.replace("1_000_000", "3000").replace(", 128)", ", 8)"), names)
    assert names["ids"].shape == (256, 100)
    assert Path("index.safetensors").exists()


def words(names: Names, code: list[str]) -> None:
    (train,) = code
    text = cx.data.words_of("x", [["append", "pop", "extend", "list"]] * 200, min_count=1)
    original, cx.data.text_words = cx.data.text_words, lambda: text  # type: ignore[assignment]
    try:
        exec(train, names)
    finally:
        cx.data.text_words = original
    assert len(names["trained"].vectors.words) == 4
    assert Path("vectors.bin").exists()


def exact(names: Names, code: list[str]) -> None:
    (optimizer,) = code
    names["model"] = cx.Head(50, 4, sampler=cx.samplers.uniform(8), rngs=nnx.Rngs(0))
    exec(optimizer, names)


def own(names: Names, code: list[str]) -> None:
    for number, block in enumerate(code):
        exec(compile(block, f"block {number} of own.md", "exec"), names)
    assert "broken" not in names  # the except clause was run, and has cleared its name


# What runs the code of a page; of a page that is not here, its blocks run in their order in one namespace.
RUNNERS: dict[str, Callable[[Names, list[str]], None]] = {
    "exact.md": exact,
    "guides/samplers_and_losses.md": samplers_and_losses,
    "guides/devices.md": devices,
    "guides/frameworks.md": frameworks,
    "guides/own.md": own,
    "guides/serving.md": serving,
    "recipes/words.md": words,
    "start.md": start,
}


def in_order(names: Names, code: list[str]) -> None:
    for number, block in enumerate(code):
        exec(compile(block, f"block {number}", "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and page not in ELSEWHERE])
def test_what_a_page_shows_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "page", sys)  # where classes look for their module
    names: Names = {"__name__": "page", "cx": cx, "jax": jax, "jnp": jnp, "np": np, "optax": optax, "nnx": nnx}
    exec("from functools import partial", names)
    RUNNERS.get(page, in_order)(names, blocks(page))


@pytest.mark.parametrize("page", ["start.md", "front_door.md"])
def test_metrics_that_a_page_shows_pass_over_what_has_no_label(page):
    shown = next(block for block in blocks(page) if "def recall" in block)
    recall = next(part for part in ast.parse(shown).body if getattr(part, "name", "") == "recall")
    names: Names = {}
    exec(ast.unparse(recall), names)
    model = nnx.Embed(5, 2, rngs=nnx.Rngs(0))
    model.head = SimpleNamespace(top_k=lambda h, k: (None, jnp.array([[3, 1], [4, -1], [0, 2]])))
    words, labels = jnp.arange(3), jnp.array([1, -1, 4])
    batch = {"words": words, "labels": labels} if page == "front_door.md" else (words, labels)
    assert cx.training.mean_over(names["recall"])(model, [batch]) == {"recall@10": 0.5}


def commands() -> list[tuple[str, str]]:
    """Every command of the program in the README and the pages, with where it stands."""
    found = []
    for page, text in {"README.md": (ROOT / "README.md").read_text(encoding="utf-8"), **PAGES}.items():
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.split()[:1] == ["candax"] and len(line.split()) > 1:
                    found.append((page, line))
    return found


def test_commands_and_their_options_are_those_of_the_program():
    assert len(commands()) > 20
    for page, line in commands():
        arguments = shlex.split(line, comments=True)[1:]
        try:
            cli._parse(arguments)
        except SystemExit as end:
            if end.code not in (0, None):  # what prints help or the version ends well
                pytest.fail(f"{page}: {line}")


def test_commands_named_in_the_text_exist():
    for page, text in PAGES.items():
        for word, second in re.findall(r"`candax ([a-z][\w-]*)(?: ([a-z][\w-]*))?", text):
            assert word in {*cli.COMMANDS, "experiment"}, f"{page}: candax {word}"
            assert word != "experiment" or not second or second in cli.EXPERIMENTS, f"{page}: {word} {second}"
        for script in re.findall(r"python (benchmarks/\w+\.py)", text):
            assert (ROOT / script).exists(), f"{page}: {script}"


def test_every_sampler_and_loss_is_on_their_page_and_the_tables_have_no_other():
    page = PAGES["guides/samplers_and_losses.md"]
    assert not [name for room in (cx.samplers, cx.losses) for name in room.__all__ if f"`{name}" not in page]
    named = re.findall(r"^\| `(\w+)", page, flags=re.MULTILINE)
    assert len(named) > 35
    assert not [name for name in named if not any(hasattr(room, name) for room in (cx.samplers, cx.losses))]


def test_links_of_pages_lead_somewhere():
    for page, text in PAGES.items():
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for link in re.findall(r"\]\(((?!http|#)[^)#\s]+)[^)]*\)", text):
            assert (DOCS / page).parent.joinpath(link).exists(), f"{page}: {link}"
