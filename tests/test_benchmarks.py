"""The benchmarks run, at sizes that show nothing but that."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

ROOT = Path(__file__).parents[1]
RUNS = {
    "scale": ["scale.py", "--num-classes", "2000", "--repeats", "2", "--num-sampled", "64", "--batch-size", "8"],
    "ann": ["ann.py", "--num-classes", "2000", "--repeats", "1", "--rounds", "1", "--kinds", "clustered"],
    "ann_step": ["ann_step.py", "--num-classes", "2000", "--candidates", "100", "--rounds", "1"],
    "peers": ["peers.py", "--num-classes", "2000", "--repeats", "1"],
    "lsh": ["lsh.py", "--num-classes", "2000", "--num-tables", "2", "--repeats", "1", "--many-tables", "1500"],
    "sequences": ["sequences.py", "--num-items", "2000", "--num-users", "200", "--rounds", "1"],
}


@pytest.mark.parametrize("name", RUNS)
def test_a_benchmark_runs(name):
    script, *options = RUNS[name]
    assert "2,000" in printed_by(script, *options)


def printed_by(script: str, *options: str) -> str:
    """What a benchmark prints."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_operations_of_a_step_of_word_vectors(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 500)
    printed = printed_by("word2vec.py", str(tmp_path / "text.txt"), "--profile")
    assert " others" in printed
    assert "ms per step of" in printed


def test_operations_are_named_with_what_they_are_from_the_longest_first(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import operations

    def sorted_in_a_loop(rows):
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.sort(x, axis=1) + 1, rows)

    rows = jnp.ones((500, 256))
    program = jax.jit(sorted_in_a_loop).lower(rows).compile()
    found = operations.operations(program.as_text(), lambda: program(rows))
    (sort,) = [of for of in found if of.source.endswith("/sort")]
    assert sort.result == "f32[500,256]"
    assert sort.milliseconds > 0
    assert [of.milliseconds for of in found] == sorted((of.milliseconds for of in found), reverse=True)
    assert not any(of.name.startswith("while") for of in found)


def test_the_steps_of_the_cost_benchmark_run(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import step_cost
    import steps

    makers = (steps.library_step, steps.pure_step, steps.module_step, steps.loop_step, steps.exact_step)
    costs = steps.by_turns([make(5000) for make in (*makers, step_cost.rows_part)], 5000, 1)
    assert [cost.num_classes for cost in costs] == [5000] * 6
    assert steps.full_step(500, None).run(steps.batches(500)[0])
    for name in ("midx", "buckets and unigram"):
        assert step_cost.sampler_step(name, 5000).run(steps.batches(5000)[0])
