"""What the README shows runs as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import candax as cx
from tests.training import problems

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_notebook_example_runs():
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[3]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    assert "num_steps=300" in code
    code = code.replace("num_steps=300", "num_steps=30")
    # As a user runs it, and quicker: the suite's compilation without optimisation does not pay for so many steps.
    environment = {**os.environ, "XLA_FLAGS": ""}
    check = code.replace("cx.training.fit(", "run = cx.training.fit(") + "\nprint('steps', run.step)"
    done = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "p_at_1" in done.stdout
    assert "steps 30" in done.stdout


def test_the_shorter_examples_run(tmp_path, monkeypatch):
    """Margins, word vectors, search, devices: each with what the first example left behind, in small."""
    monkeypatch.chdir(tmp_path)
    own, pure, loop, _, margins, words, search, devices, million = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    rng = np.random.default_rng(0)
    classes = cx.Classes(jnp.asarray(rng.normal(size=(3000, 8)), jnp.float32), None, None, jnp.int32(3000))
    names = {"cx": cx, "jax": jax, "optax": optax, "classes": classes, "embeddings": classes.vectors[:4] * 9}
    exec(search, names)
    assert names["ids"].shape == (4, 100)
    assert (tmp_path / "index.safetensors").exists()
    text = cx.data.words_of("x", [["append", "pop", "extend", "list"]] * 200, min_count=1)
    monkeypatch.setattr(cx.data, "text_words", lambda: text)
    exec(words, names)
    assert len(names["trained"].vectors.words) == 4
    assert (tmp_path / "vectors.bin").exists()
    names["nnx"] = nnx
    exec(own.replace("128_000", "500").replace("8192", "64"), names)
    tokens = rng.integers(0, 500, (2, 6))
    losses = [names["train_step"](names["model"], names["optimizer"], tokens, tokens, tokens > 9) for _ in range(8)]
    assert losses[-1] < losses[0]
    exec(pure.replace("128_000", "500").replace("8192", "64"), names)
    assert np.isfinite(names["loss_fn"](names["params"], tokens, tokens, jax.random.key(2)))
    exec(loop, names | {"held_out": [(tokens, tokens)], "batches": [(tokens, tokens)] * 3})
    assert cx.training.load("runs/lm", lambda: names["model"]).step == 9
    exec(margins, names)
    encoder = cx.models.SparseMLP(9, 8, rngs=nnx.Rngs(0))
    batch = cx.data.Batch(np.zeros((8, 3), np.int32), np.ones((8, 3), np.float32), np.zeros((8, 1), np.int32))
    names |= {"encoder": encoder, "data": SimpleNamespace(num_classes=5000), "counts": np.ones(5000)}
    exec(devices.replace("128", "8").replace("loss=loss", "loss=cx.losses.css"), names)
    made = [(names["model"], cx.Optimizer(names["model"], optax.adam(1e-3)))]
    for mesh in ("mesh = None", "mesh = cx.training.class_mesh()"):
        exec(million.replace("1_000_000", "5000").replace("mesh = None", mesh), names)
        made.append((names["model"], names["optimizer"]))
    for model, optimizer in made:
        assert model.head.num_classes == 5000
        assert np.isfinite(problems.train_step(model, optimizer, batch))


def test_pictures_and_files_that_it_names_exist():
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (root / link).exists(), link
    for name in re.findall(r"`((?:candax|tests|benchmarks|docs)/[\w/.]*)`", README):
        assert (root / name).exists(), name
