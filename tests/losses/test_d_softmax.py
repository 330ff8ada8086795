"""D-Softmax by hand, over all classes, and its variants."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax import losses
from candax.base import Classes
from tests.losses.problems import Example, check_by_hand, make, softplus


def between(example: Example, scale: float, *, corrected: bool) -> float:
    weights = np.exp(-example.sampled_count) if corrected else 1.0
    return float(np.log1p(np.sum(np.where(example.hits, 0.0, weights * np.exp(scale * example.sampled)))))


@pytest.mark.parametrize("corrected", [False, True])
def test_d_softmax_by_hand(corrected):
    def formula(example: Example) -> float:
        within = np.mean(softplus(3.0 * (0.8 - example.true)))
        return float(within + between(example, 3.0, corrected=corrected))

    check_by_hand(partial(losses.d_softmax, end_point=0.8, scale=3.0, corrected=corrected), formula)


def test_over_all_classes_it_is_the_formula_of_the_paper():
    rng = np.random.default_rng(0)
    embeddings, vectors, labels = rng.normal(size=(4, 3)), rng.normal(size=(6, 3)), np.array([[2], [0], [5], [2]])
    classes = Classes(jnp.asarray(vectors, jnp.float32), None, None, jnp.int32(6), normalized=True)
    got = losses.over_all_classes(partial(losses.d_softmax, scale=5.0))(
        jnp.asarray(embeddings, jnp.float32), jnp.asarray(labels, jnp.int32), classes
    )
    along = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    cosines = along @ (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).T
    true = np.take_along_axis(cosines, labels, 1)[:, 0]
    others = np.exp(5 * cosines).sum(axis=1) - np.exp(5 * true)
    np.testing.assert_allclose(got, np.log1p(np.exp(5 * (0.9 - true))) + np.log1p(others), rtol=1e-5)


def test_b_has_the_loss_between_classes_of_a_share_of_the_batch():
    logits, _ = make()
    whole = losses.d_softmax(logits, scale=2.0)
    np.testing.assert_allclose(losses.d_softmax_b(logits, share=1.0, scale=2.0), whole, rtol=1e-6)
    alone = dataclasses.replace(logits, sampled_mask=jnp.zeros_like(logits.sampled_mask))
    within = losses.d_softmax(alone, scale=2.0)
    got = losses.d_softmax_b(logits, share=0.1, scale=2.0)  # one of three examples
    np.testing.assert_allclose(got[1:], within[1:], rtol=1e-6)
    assert float(got[0]) == pytest.approx(float(within[0] + 3 * (whole[0] - within[0])), rel=1e-5)
    nobody = jax.tree.map(lambda field: field[:0], logits)
    assert losses.d_softmax_b(nobody).shape == (0,)


def test_errors_say_what_is_out_of_range():
    logits, _ = make()
    with pytest.raises(ValueError, match="0 < share <= 1"):
        losses.d_softmax_b(logits, share=0.0)
    with pytest.raises(ValueError, match="scale > 0"):
        losses.d_softmax(logits, scale=-1.0)
