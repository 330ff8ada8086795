"""Every jitted step of the library lowers for CPU, CUDA and TPU, whatever machine the tests run on."""

import functools

import jax
import jax.export
import optax
import pytest
from flax import nnx

import candax as cx
from candax.training.trainer import Graph, compiled_step, loss_of_labels
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
    "kernel": (cx.samplers.kernel(4, rank=4), cx.losses.css),
    "kernel, positive": (cx.samplers.kernel(4, features="positive", num_features=8), cx.losses.css),
    "midx": (cx.samplers.midx(4, num_codewords=4), cx.losses.css),
    "ivf_bq": (cx.samplers.ivf_bq(4, num_centers=4, hm_num=16, num_kept=8, codes="int8"), cx.losses.subset_softmax),
    "ivf_bq grouped": (
        cx.samplers.ivf_bq(num_centers=4, hm_num=16, num_sampled=8, num_groups=2, k=2, codes="int8"),
        cx.losses.subset_softmax,
    ),
    "top_k": (cx.samplers.top_k(4, block_size=16), cx.losses.subset_softmax),
    "resampled": (cx.samplers.resampled(cx.samplers.unigram(8), 4), cx.losses.css),
    "buckets": (
        cx.samplers.with_tail(cx.samplers.buckets(cx.samplers.exact_index(), 2), cx.samplers.uniform(4)),
        cx.losses.css,
    ),
    "mixture": (cx.samplers.mixture([cx.samplers.in_batch(), cx.samplers.uniform(4)]), cx.losses.sampled_softmax),
}


# The others are made of the same operations.
QUICK = ("full", "uniform", "log_uniform", "unigram", "lsh", "kernel", "midx", "ivf_bq", "top_k")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in STEPS]
)
def test_the_step_lowers_for_every_platform(name):
    model = problems.model(*STEPS[name])
    graph, arrays = nnx.split((model, cx.Optimizer(model, optax.adam(1e-2))))
    step = jax.jit(functools.partial(compiled_step(loss_of_labels, 1), Graph(graph)))
    # Python's own dispatch of the step is not what is exported, so keys and donation do not matter here.
    exported = jax.export.export(step, platforms=PLATFORMS)(arrays, problems.Source()[0, 0])
    assert exported.platforms == PLATFORMS


@pytest.mark.parametrize("name", ["uniform, no replacement", "unigram", "lsh", "kernel", "midx", "ivf_bq"])
def test_refresh_lowers_for_every_platform(name):
    head = problems.model(*STEPS[name]).head
    refresh = jax.jit(head.sampler.refresh)
    exported = jax.export.export(refresh, platforms=PLATFORMS)(head.state.get_value(), head.step_key(), head.classes())
    assert exported.platforms == PLATFORMS


def test_prediction_and_evaluation_lower_for_every_platform():
    model, batch = problems.model(*STEPS["uniform"]), problems.Source()[0, 0]
    graph, arrays = nnx.split(model)
    jax.export.export(jax.jit(lambda arrays, batch: nnx.merge(graph, arrays)(batch)), platforms=PLATFORMS)(
        arrays, batch
    )
    search = jax.jit(functools.partial(cx.blocks.streaming_evaluate, k=5, block_size=16))
    jax.export.export(search, platforms=PLATFORMS)(cx.training.embed(model, batch), model.head.classes())
