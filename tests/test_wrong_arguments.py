"""Arguments of wrong types and ranges: one sentence of ours that says what was expected and what came."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx
from jaxtyping import TypeCheckError

import candax as cx

WRONG: dict[str, Any] = {
    "None": None,
    "a word": "x",
    "2.5": 2.5,
    "nan": float("nan"),
    "-3": -3,
    "0": 0,
    "True": True,
    "a list": [1],
    "an array": jnp.ones(3),
    "a factory": cx.samplers.uniform,
}
OF_LOGITS = [name for name in cx.losses.__all__ if name not in ("each_label", "over_all_classes", "full_softmax")]
LSH = partial(cx.samplers.lsh_top_k, num_tables=2, num_hashes=2)
# Each takes one number of things, of 1 or more.
COUNTS = {
    "uniform": cx.samplers.uniform,
    "log_uniform": cx.samplers.log_uniform,
    "unigram": cx.samplers.unigram,
    "partial_fc": cx.samplers.partial_fc,
    "learned_unigram": cx.samplers.learned_unigram,
    "learned_clusters": cx.samplers.learned_clusters,
    "kernel": cx.samplers.kernel,
    "midx": cx.samplers.midx,
    "top_k": cx.samplers.top_k,
    "buckets": partial(cx.samplers.buckets, cx.samplers.exact_index()),
    "hashing_forest": cx.samplers.hashing_forest,
    "knn_label": cx.samplers.knn_label,
    "lsh_top_k": LSH,
    "resampled": partial(cx.samplers.resampled, cx.samplers.uniform(8)),
    "Head": lambda number: cx.Head(number, 4, sampler=cx.samplers.uniform(3), rngs=nnx.Rngs(0)),
    "Head, dim": lambda number: cx.Head(
        10, "none" if number is None else number, sampler=cx.samplers.uniform(3), rngs=nnx.Rngs(0)
    ),
    "Embed": lambda number: cx.Embed(number, 4, rngs=nnx.Rngs(0)),
    "Embed, features": lambda number: cx.Embed(10, number, rngs=nnx.Rngs(0)),
}


def refused(call: Any, value: Any) -> str:
    with pytest.raises((ValueError, TypeCheckError)) as caught:
        call(value)
    return str(caught.value)


@pytest.mark.parametrize("value", WRONG)
def test_a_number_of_things(value: str) -> None:
    for name, call in COUNTS.items():
        message = refused(call, WRONG[value])
        assert "expected" in message.lower(), (name, message)


@pytest.mark.parametrize("value", WRONG)
def test_losses_take_logits_alone(value: str) -> None:
    for name in OF_LOGITS:
        if name not in ("with_margin", "with_smoothing"):
            refused(getattr(cx.losses, name), WRONG[value])
    with pytest.raises(ValueError, match=r"expected logits to be a SampledLogits, got .* A head makes them"):
        cx.losses.css(WRONG[value])


@pytest.mark.parametrize("value", [name for name in WRONG if name != "None"])
def test_samplers_take_samplers(value: str) -> None:
    wrong = WRONG[value]
    calls = [
        lambda part: cx.samplers.mixture([cx.samplers.uniform(2), part]),
        lambda part: cx.Head(10, 4, sampler=part, rngs=nnx.Rngs(0)),
    ]
    for call in calls:
        refused(call, wrong)


@pytest.mark.parametrize("value", ["nan", "-3", "0", "True", "an array", "a word"])
def test_numbers_that_may_have_a_fraction(value: str) -> None:
    wrong = WRONG[value]
    if value != "True":
        refused(cx.samplers.bernoulli, wrong)
    for call in (
        lambda number: cx.losses.with_smoothing(cx.losses.css, 1.0 if number in (0, True) else number),
        lambda number: cx.rows.averaged(None, number),  # type: ignore[arg-type]
    ):
        refused(call, wrong)


@pytest.mark.parametrize("value", ["None", "a word", "a list", "2.5"])
@pytest.mark.parametrize("at", range(8))
def test_each_of_a_list_is_looked_at(at: int, value: str) -> None:
    numbers: list[Any] = [4] * 8
    numbers[at] = WRONG[value]
    with pytest.raises(ValueError, match=r"expected hidden to be a list of integers, got .* at place"):
        cx.models.DenseMLP(3, numbers, 4, rngs=nnx.Rngs(0))
