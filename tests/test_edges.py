"""The smallest and the most extreme inputs: a finite loss with finite gradients, or a sentence that says why not."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax import losses, samplers
from tests.conformance import tables

NUM, DIM, BATCH, SAMPLED = 40, 4, 4, 64
SAMPLERS = {
    "uniform": samplers.uniform(SAMPLED),
    "uniform distinct": samplers.uniform(SAMPLED, replacement=False),
    "log_uniform": samplers.log_uniform(SAMPLED, ids_ranked=True),
    "unigram": samplers.unigram(SAMPLED, smoothing=1.0),
    "bernoulli": samplers.bernoulli(8.0, smoothing=1.0),
    "in_batch": samplers.in_batch(),
    "partial_fc": samplers.partial_fc(SAMPLED),
    "learned_unigram": samplers.learned_unigram(SAMPLED),
    "learned_clusters": samplers.learned_clusters(SAMPLED, num_clusters=2),
    "kernel": samplers.kernel(SAMPLED, rank=2, leaf_size=4),
    "kernel positive": samplers.kernel(SAMPLED, features="positive", num_features=16, leaf_size=4, num_groups=1),
    "midx": samplers.midx(SAMPLED, num_codewords=4),
    "midx residual": samplers.midx(SAMPLED, num_codewords=2, codes="residual", power=0.75, num_groups=1),
    "top_k": samplers.top_k(SAMPLED),
    "lsh": samplers.lsh(hash=samplers.simhash(), num_tables=2, num_hashes=2, budget=SAMPLED, fill="uniform"),
    "lsh labels": samplers.lsh("label", hash=samplers.dwta(2), num_tables=2, num_hashes=2, budget=SAMPLED),
    "lsh_top_k": samplers.lsh_top_k(8, hash=samplers.simhash(), num_tables=2, num_hashes=2),
    "ivf_bq": samplers.ivf_bq(8, num_centers=2, hm_num=SAMPLED),
    "knn_label": samplers.knn_label(4),
    "hashing_forest": samplers.hashing_forest(8, num_trees=2, leaf_size=4),
    "buckets": samplers.buckets(samplers.exact_index(), 4, num_directions=2),
    "with_tail": samplers.with_tail(samplers.top_k(4), samplers.uniform(SAMPLED)),
    "mixture": samplers.mixture([samplers.uniform(4), samplers.log_uniform(SAMPLED, ids_ranked=True)]),
}
SAMPLERS |= {
    name: case.factory(case.groups[0])
    for name, case in tables.SAMPLERS.items()
    if name in samplers.__all__ and name not in SAMPLERS
}
LOSSES = {
    name: getattr(losses, name)
    for name in losses.__all__
    if name not in ("each_label", "full_softmax", "over_all_classes", "with_margin", "with_smoothing")
    and name not in ("arcface", "cosface")
} | {
    "smoothed": losses.with_smoothing(losses.css, 0.2),
    "arcface": losses.with_margin(losses.arcface, losses.sampled_softmax),
    "one by one": losses.each_label(losses.nce),
}


def values(num: int = NUM, batch: int = BATCH) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "vectors": rng.normal(size=(num, DIM)).astype(np.float32),
        "embeddings": rng.normal(size=(batch, DIM)).astype(np.float32),
        "labels": rng.integers(0, num, (batch, 1)).astype(np.int32),
        "counts": np.arange(num, 0, -1, dtype=np.float32),
    }


def one_direction(sign: float) -> dict[str, Any]:
    """Logits of 80 and -80."""
    found = values()
    signs = np.where(np.arange(NUM) % 2, 1.0, -1.0).astype(np.float32)
    return found | {
        "vectors": np.outer(signs, np.full(DIM, 2.0, np.float32)),
        "embeddings": np.full((BATCH, DIM), sign * 10.0, np.float32),
    }


EDGES = {
    "as usual": values(),
    "no labels": values() | {"labels": np.full((BATCH, 1), -1, np.int32)},
    "an example without labels": values() | {"labels": np.array([[3], [-1], [5], [-1]], np.int32)},
    "never counted": values() | {"counts": np.where(np.arange(NUM) < 3, 5.0, 0.0).astype(np.float32)},
    "logits of 80": one_direction(1.0),
    "logits of -80": one_direction(-1.0),
    "embeddings of zeros": values() | {"embeddings": np.zeros((BATCH, DIM), np.float32)},
    "equal class vectors": values() | {"vectors": np.ones((NUM, DIM), np.float32)},
    "class vectors of zeros": values() | {"vectors": np.zeros((NUM, DIM), np.float32)},
}
SIZES = {
    "one class": values(num=1),
    "one example": values(batch=1),
    "two examples of two classes": values(num=2, batch=2),
}


@cache
def step(sampler: Any, loss: Any) -> Any:
    def of(vectors: Any, embeddings: Any, labels: Any, counts: Any, state: Any, key: Any) -> Any:
        def value(vectors: Any, embeddings: Any) -> Any:
            classes = cx.Classes(vectors, None, counts)
            return cx.sampled_loss(embeddings, labels, classes, sampler=sampler, state=state, key=key, loss=loss)

        return jax.value_and_grad(value, argnums=(0, 1))(vectors, embeddings)

    return jax.jit(of)


def is_finite_or_refused(sampler: Any, loss: Any, given: dict[str, Any]) -> bool:
    """Whether it was taken."""
    given = {name: jnp.asarray(value) for name, value in given.items()}
    try:
        state = sampler.init(jax.random.key(0), cx.Classes(given["vectors"], None, given["counts"]))
        value, grads = step(sampler, loss)(**given, state=state, key=jax.random.key(1))
    except ValueError as error:
        if "expected" not in str(error):
            raise
        return False
    assert np.isfinite(value)
    assert all(np.isfinite(grad).all() for grad in grads)
    if not (np.asarray(given["labels"]) >= 0).any():
        assert value == 0
        assert not any(np.asarray(grad).any() for grad in grads)
    return True


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(name: str) -> None:
    of = partial(is_finite_or_refused, SAMPLERS[name], losses.css)
    assert all(of(given) for given in EDGES.values())
    taken = [size for size, given in SIZES.items() if of(given)]
    assert "one example" in taken


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    of = partial(is_finite_or_refused, SAMPLERS["uniform"], LOSSES[name])
    assert all(of(given) for given in EDGES.values())
    assert all(of(given) for given in SIZES.values())


def test_an_empty_data_set_is_refused() -> None:
    from scipy.sparse import csr_array

    nothing = cx.data.Examples(csr_array((0, 3), dtype=np.float32), csr_array((0, 5), dtype=bool))
    with pytest.raises(ValueError, match="expected"):
        cx.data.Batches(nothing, 2, 0)
