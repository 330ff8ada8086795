"""What cannot be diagnosed is refused with a reason."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import candax as cx
from candax.diagnostics import Method, diagnose
from tests.diagnostics.problems import problem

KEY = jax.random.key(5)
METHODS = [Method("uniform", "css", cx.samplers.uniform, cx.losses.css)]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"embeddings": np.zeros((6, 3), np.float32)}, "as many coordinates as class vectors, 4, got 3"),
        ({"embeddings": np.zeros((5, 4), np.float32)}, "one row of labels for each embedding"),
        ({"embeddings": np.full((6, 4), np.inf, np.float32)}, "finite embeddings"),
        ({"labels": np.full((6, 1), 40)}, "labels from 0 to 39"),
        ({"labels": np.full((6, 1), -2)}, "labels from 0 to 39"),
        ({"labels": np.full((6, 1), -1)}, "none for example 0"),
        ({"labels": np.full((6, 2), 3)}, "one twice in example 0"),
        ({"labels": np.zeros(6, np.int32)}, "labels \\[B, T\\]"),
        ({"methods": []}, "0 methods"),
        ({"num_sampled": []}, "0 numbers"),
        ({"num_sampled": [0]}, "1 or more"),
        ({"num_sampled": [3, 3]}, "distinct"),
        ({"num_draws": 2}, "even num_draws"),
        ({"num_draws": 7}, "even num_draws"),
        ({"top_k": 41}, "top_k from 1 to 40"),
    ],
)
def test_wrong_arguments_are_refused(change, match):
    classes, embeddings, labels = problem(padding=2)
    arguments = {
        "embeddings": embeddings,
        "labels": labels,
        "methods": METHODS,
        "num_sampled": [3],
        "num_draws": 4,
        "key": KEY,
    }
    with pytest.raises(ValueError, match=match):
        diagnose(classes, **{**arguments, **change})


def test_class_vectors_that_are_not_finite_are_refused():
    classes, embeddings, labels = problem()
    broken = dataclasses.replace(classes, vectors=classes.vectors.at[3, 1].set(jnp.nan))
    with pytest.raises(ValueError, match="finite class vectors"):
        diagnose(broken, embeddings, labels, METHODS, num_sampled=[3], num_draws=4, key=KEY)
