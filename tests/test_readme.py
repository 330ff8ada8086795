"""What the README shows runs as it stands there, and it stays short. The pages under docs/: ``test_pages.py``."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

import candax as cx

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def sides(diff: str) -> tuple[str, str]:
    """The program before and after a difference."""
    lines = diff.splitlines()
    assert all(line[:1] in {" ", "+", "-", ""} for line in lines)
    before, after = ([line[1:] for line in lines if line[:1] != other] for other in "+-")
    return "\n".join(before), "\n".join(after)


def test_it_is_short():
    assert len(README.split()) <= 800


def test_the_model_trains_before_the_change_and_after_it():
    """Sizes are smaller; everything else is what stands there."""
    (diff,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)
    tokens = np.random.default_rng(0).integers(0, 500, 64)
    for program in sides(diff):
        names: dict[str, object] = {}
        exec(program.replace("128_000", "500").replace("8192", "64").replace("1e-3", "1e-2"), names)
        losses = [
            names["train_step"](names["model"], names["optimizer"], tokens, (tokens + 1) % 500)  # type: ignore[operator]
            for _ in range(20)
        ]
        assert losses[-1] < losses[0] - 0.05


def test_the_pure_call_and_fit_run_in_the_model_of_the_change():
    (diff,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)
    pure, fitted = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, Any] = {}
    exec(sides(diff)[1].replace("128_000", "500").replace("8192", "64").replace("1e-3", "1e-2"), names)
    tokens = np.random.default_rng(0).integers(0, 500, 64)
    names["batches"] = [(tokens, (tokens + 1) % 500)] * 20
    exec(fitted, names)
    assert names["result"].step == 60

    sampler = cx.samplers.log_uniform(64, ids_ranked=True)
    names |= {"sampler": sampler, "apply": lambda body, tokens: jnp.tanh(body[tokens])}
    exec(pure, names)
    params = {"body": jnp.ones((500, 8)), "classes": jnp.zeros((500, 8))}
    state = sampler.init(jax.random.key(0), cx.Classes(params["classes"]))
    grads = jax.grad(names["loss_of"])(params, state, tokens, (tokens + 1) % 500, jax.random.key(1))
    assert float(jnp.abs(grads["classes"]).max()) > 0


def test_commands_that_readers_and_ci_follow_are_in_it():
    assert "pip install -e .\ncandax compare\n" in README
    assert "pip install -e '.[test]'\npytest -n auto\n" in README


def test_pictures_and_files_that_it_names_exist():
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    for name in re.findall(r"`((?:candax|tests|benchmarks|docs|examples|notebooks)/[\w/.]*)`", README):
        assert (ROOT / name).exists(), name
