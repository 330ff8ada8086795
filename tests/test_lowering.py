"""Every jitted step of the library lowers for CPU, CUDA and TPU, whatever machine the tests run on."""

import functools

import jax
import jax.export
import pytest

import candax as cx
from tests.training import problems

PLATFORMS = ("cpu", "cuda", "tpu")
STEPS = {
    "full": (None, cx.losses.full_softmax),
    "full in blocks": (None, functools.partial(cx.losses.full_softmax, block_size=16)),
    "uniform": (cx.samplers.uniform(8), cx.losses.css),
    "uniform, no replacement": (cx.samplers.uniform(4, replacement=False), cx.losses.subset_softmax),
    "log_uniform": (cx.samplers.log_uniform(8, num_groups=None), cx.losses.sampled_softmax),
    "unigram": (cx.samplers.unigram(8), cx.losses.css),
    "unigram, no replacement": (cx.samplers.unigram(4, replacement=False), cx.losses.css),
    "bernoulli": (cx.samplers.bernoulli(8.0), cx.losses.css),
    "lsh": (cx.samplers.lsh(num_tables=3, num_hashes=2, budget=8, fill="uniform"), cx.losses.css),
    "lsh label": (cx.samplers.lsh("label", num_tables=3, num_hashes=2, num_groups=1), cx.losses.subset_softmax),
    "top_k": (cx.samplers.top_k(4, block_size=16), cx.losses.subset_softmax),
}


# The others are made of the same operations.
QUICK = ("full", "uniform", "log_uniform", "unigram", "lsh", "top_k")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in STEPS]
)
def test_the_step_lowers_for_every_platform(name):
    sampler, loss = STEPS[name]
    program = problems.program(sampler, loss)
    # Python's own dispatch of the step is not what is exported, so keys and donation do not matter here.
    exported = jax.export.export(program.step, platforms=PLATFORMS)(program.init(0), problems.Source()[0, 0])
    assert exported.platforms == PLATFORMS


@pytest.mark.parametrize("name", ["uniform, no replacement", "unigram", "lsh"])
def test_refresh_lowers_for_every_platform(name):
    program = problems.program(*STEPS[name])
    exported = jax.export.export(program.refresh, platforms=PLATFORMS)(program.init(0))
    assert exported.platforms == PLATFORMS


def test_prediction_and_evaluation_lower_for_every_platform():
    program = problems.program(*STEPS["uniform"])
    state, batch = program.init(0), problems.Source()[0, 0]
    jax.export.export(program.embed, platforms=PLATFORMS)(state, batch)
    search = jax.jit(functools.partial(cx.blocks.streaming_evaluate, k=5, block_size=16))
    jax.export.export(search, platforms=PLATFORMS)(program.embed(state, batch), program.classes(state))
