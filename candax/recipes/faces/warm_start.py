"""A start for more classes than there is time to train from nothing: an encoder that has been trained on some of them.

The encoder is trained with the full softmax on the first identities alone. Then every class vector starts as the mean
direction of its samples' embeddings ("imprinting": Qi, Brown and Lowe, Low-Shot Learning with Imprinted Weights, 2018),
so that a few steps among all classes show what a method adds or loses, instead of how it begins.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from candax import models
from candax.recipes.faces.problem import Problem, make_problem

# Samples that a class vector is the mean of.
_SAMPLES = 4
# Identities whose samples are made at a time.
_CHUNK = 4096


def make_pretrained(
    problem: Problem, loss: Callable[..., Any], *, learning_rate: float, num_classes: int, num_steps: int
) -> models.Classifier:
    """A model of all the problem's classes, after training on the first few of them.

    Args:
        problem: whose settings say what is trained and how.
        loss: over all classes, to train with.
        learning_rate: of that training.
        num_classes: identities that the encoder is trained on; those of the problem, if it has fewer.
        num_steps: training steps on them.

    Returns:
        The model: its encoder trained, its class vectors imprinted, of length 1.
    """
    few = dataclasses.replace(
        problem.settings, num_classes=min(num_classes, problem.settings.num_classes), learning_rate=learning_rate
    )
    few = dataclasses.replace(few, epochs=num_steps / few.batches_per_epoch)
    few_problem = make_problem(few, tests=1, pairs=2, probes=1, distractors=1)
    training = few_problem.training(measure=lambda model: {"model": model})
    encoder = training.by(None, loss, f"encoder, {few.num_classes:,} classes")(None)["model"].encoder
    whole = problem.model()
    whole.encoder = encoder
    whole.head.vectors[...] = jnp.asarray(imprinted(problem, whole))
    return whole


def imprinted(problem: Problem, model: models.Classifier) -> Float[np.ndarray, "num_classes dim"]:
    """Mean direction of the embeddings of each class's first training samples, of length 1."""
    settings, identities = problem.settings, problem.batches.identities
    vectors = np.empty((settings.num_classes, settings.dim), np.float32)
    samples = min(_SAMPLES, settings.samples_per_class)
    for start in range(0, settings.num_classes, _CHUNK):
        ids = np.arange(start, min(start + _CHUNK, settings.num_classes))
        inputs = identities.inputs(np.repeat(ids, samples), np.tile(np.arange(samples), len(ids)))
        directions = _unit(problem.embed(model, inputs))
        vectors[ids] = _unit(directions.reshape(len(ids), samples, settings.dim).mean(axis=1))
    return vectors


def _unit(rows: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
