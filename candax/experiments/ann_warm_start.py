"""A start for more classes than there is time to train from nothing: an encoder that has been trained on some of them.

The encoder is trained with the full softmax on the first identities alone. Then every class vector starts as the mean
direction of its samples' embeddings ("imprinting": Qi, Brown and Lowe, Low-Shot Learning with Imprinted Weights, 2018),
so that a few steps among all classes show what a method adds or loses, instead of how it begins.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from candax import losses, models, training
from candax.experiments import ann_setup
from candax.experiments.ann_methods import LOSSES

# Samples that a class vector is the mean of.
_SAMPLES = 4
# Identities whose samples are made at a time.
_CHUNK = 4096


def make_pretrained(problem: ann_setup.Problem, *, num_classes: int, num_steps: int) -> models.Classifier:
    """A model of all the problem's classes, after training on the first few of them.

    Args:
        problem: whose settings say what is trained and how.
        num_classes: identities that the encoder is trained on; those of the problem, if it has fewer.
        num_steps: training steps on them.

    Returns:
        The model: its encoder trained, its class vectors imprinted, of length 1.
    """
    settings = problem.settings
    few = dataclasses.replace(settings, num_classes=min(num_classes, settings.num_classes))
    per_epoch = few.num_classes * few.samples_per_class // few.batch_size
    few_problem = ann_setup.make_problem(
        dataclasses.replace(few, epochs=num_steps / per_epoch), tests=1, pairs=2, probes=1, distractors=1
    )
    model = ann_setup.make_model(few_problem)
    loss = losses.over_all_classes(LOSSES["softmax"])
    trained = ann_setup.train(few_problem, f"encoder, {few.num_classes:,} classes", None, loss, model=model)
    trained.program.update_model(trained.state)
    whole = ann_setup.make_model(problem)
    whole.encoder = model.encoder
    whole.head.vectors[...] = jnp.asarray(imprinted(problem, trained.program, trained.state))
    return whole


def imprinted(
    problem: ann_setup.Problem, program: training.Program, state: training.TrainState
) -> Float[np.ndarray, "num_classes dim"]:
    """Mean direction of the embeddings of each class's first training samples, of length 1."""
    settings, identities = problem.settings, problem.batches.identities
    vectors = np.empty((settings.num_classes, settings.dim), np.float32)
    samples = min(_SAMPLES, settings.samples_per_class)
    for start in range(0, settings.num_classes, _CHUNK):
        ids = np.arange(start, min(start + _CHUNK, settings.num_classes))
        inputs = identities.inputs(np.repeat(ids, samples), np.tile(np.arange(samples), len(ids)))
        directions = _unit(ann_setup.embed(program, state, inputs))
        vectors[ids] = _unit(directions.reshape(len(ids), samples, settings.dim).mean(axis=1))
    return vectors


def _unit(rows: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
