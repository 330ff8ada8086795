"""Generated identities as a problem for the runner: data, model, and how it is trained and measured."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Float, Integer
from scipy.sparse import csr_array

import candax as cx
from candax import data, losses, models, training
from candax.base import Sampler
from candax.recipes import common

# The first ids of identities that no model is trained on: of the pairs, of the probes, and of the distractors.
_PAIRS, _PROBES, _DISTRACTORS = 1 << 40, 1 << 41, 1 << 42
# The other identity of a pair is the nearest of this many.
_AMONG = 64
# Samples that an encoder sees at a time.
_CHUNK = 1024
# Of a warm start: samples that a class vector is the mean of, and identities whose samples are made at a time.
_SAMPLES, _IDENTITIES = 4, 4096
# Where the curve is measured, as shares of the steps.
_MEASURED_AT = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)


@dataclasses.dataclass(frozen=True)
class Faces(common.Settings):
    """Identities, the model, and how it is trained."""

    num_classes: common.Count = 3000
    """Identities to train on."""
    samples_per_class: common.Count = 20
    """Training samples of each identity."""
    epochs: common.Positive = 5
    """Passes over the samples."""
    nuisance: float = 1.25
    """How hard it is to tell identities apart: the strength of what changes from sample to sample."""
    noise: float = 0.1
    """Strength of noise that no encoder can remove."""
    batch_size: common.Count = 256
    """Examples per step."""
    hidden: common.Count = 256
    """Width of the encoder's hidden layer."""
    dim: common.Count = 64
    """Width of embeddings and class vectors."""
    learning_rate: common.Positive = 1e-2
    """Learning rate of Adam at the start; it falls to 0 along half a cosine."""
    epsilon: common.Positive = 1e-4
    """Epsilon of Adam, which divides by the root mean square gradient plus this. Over all classes most gradients are
    nearly 0, and the usual 1e-8 makes full steps of them, whose noise undoes what the others learn: with 1e-8 the full
    softmax of 10,000 classes is at .59 after 800 steps, with 1e-4 at .82 (ANN Softmax: .82 and .84)."""
    rate: common.Share = 0.1
    """Candidates of a group as a share of all classes: the paper's r."""
    num_groups: common.Count = 8
    """Groups of examples that share candidates: the paper's g."""

    QUICK: ClassVar = {
        **{"num_classes": 60, "samples_per_class": 8, "epochs": 1.0, "nuisance": 0.3, "learning_rate": 0.02},
        **{"batch_size": 16, "hidden": 16, "dim": 8, "rate": 0.4, "num_groups": 2},
    }

    @property
    def num_sampled(self) -> int:
        """Candidates of a group."""
        return max(1, round(self.rate * self.num_classes))

    @property
    def batches_per_epoch(self) -> int:
        """Steps of a pass over the samples."""
        return max(1, self.num_classes * self.samples_per_class // self.batch_size)

    def check(self) -> None:
        """See ``Settings``; groups must be equal parts of a batch."""
        super().check()
        divides = self.batch_size % self.num_groups == 0
        self.expect(divides, "--num-groups that divides --batch-size", "num_groups", "batch_size")


@dataclasses.dataclass(frozen=True)
class Problem:
    """Training batches, and what is measured on: new samples of the classes, pairs, probes and distractors."""

    settings: Faces
    batches: data.IdentityBatches
    num_steps: int
    test_ids: Integer[np.ndarray, " N"]
    test_inputs: Float[np.ndarray, "N num_features"]
    pairs: data.Pairs
    probes: Float[np.ndarray, "P num_features"]
    mates: Float[np.ndarray, "P num_features"]
    distractors: Float[np.ndarray, "D num_features"]

    def model(
        self,
        sampler: Sampler | None = None,
        loss: Callable[..., Any] = losses.full_softmax,
        *,
        num_projected: int | None = None,
    ) -> models.Classifier:
        """A perceptron, followed by a head of cosines; ``num_projected`` puts a random projection between them."""
        settings, rngs = self.settings, nnx.Rngs(self.settings.seed)
        encoder: Any = models.DenseMLP(self.test_inputs.shape[1], (settings.hidden,), settings.dim, rngs=rngs)
        if num_projected is not None:
            encoder = models.RandomProjection(encoder, settings.dim, num_projected, rngs=rngs)
        head = cx.Head(settings.num_classes, num_projected or settings.dim, normalized=True, rngs=rngs)
        return self._with(models.Classifier(encoder, head), sampler, loss)

    def _with(self, model: models.Classifier, sampler: Sampler | None, loss: Callable[..., Any]) -> models.Classifier:
        model.head.key_data.set_value(jax.random.key_data(jax.random.key(self.settings.seed)))
        model.head.use(sampler, loss)
        return model

    def training(
        self,
        *,
        start: models.Classifier | None = None,
        num_projected: int | None = None,
        measure: common.Measure | None = None,
        on_the_way: common.Measure | None = None,
    ) -> common.Training:
        """Training with Adam and a learning rate that falls to 0."""
        settings = self.settings
        schedule = optax.cosine_decay_schedule(settings.learning_rate, self.num_steps)

        def make(sampler: Sampler | None, loss: Callable[..., Any]) -> tuple[models.Classifier, cx.Optimizer]:
            if start is None:
                model = self.model(sampler, loss, num_projected=num_projected)
            else:
                graph, arrays = nnx.split(start)
                model = self._with(nnx.merge(graph, jax.tree.map(jnp.array, arrays)), sampler, loss)
            return model, cx.Optimizer(model, optax.adam(schedule, eps=settings.epsilon), seed=settings.seed)

        measured = self.measure if measure is None else measure
        return common.Training(make, self.batches, self.num_steps, measured, on_the_way, _MEASURED_AT)

    def embed(self, model: Any, inputs: Float[np.ndarray, "N num_features"]) -> Float[np.ndarray, "N dim"]:
        """Embeddings of any number of inputs."""
        parts = []
        for start in range(0, len(inputs), _CHUNK):
            part = inputs[start : start + _CHUNK]
            batch = data.IdentityBatch(np.pad(part, ((0, _CHUNK - len(part)), (0, 0))), np.zeros((_CHUNK, 1), np.int32))
            parts.append(np.asarray(training.embed(model, batch))[: len(part)])
        return np.concatenate(parts)

    def top_1(self, model: Any) -> dict[str, float]:
        """The share of new samples of the training classes whose class is ranked first."""
        number, num_classes = len(self.test_ids), self.settings.num_classes
        labels = csr_array((np.ones(number, bool), self.test_ids, np.arange(number + 1)), shape=(number, num_classes))
        chunks = [slice(start, min(start + _CHUNK, number)) for start in range(0, number, _CHUNK)]
        counts = np.full(num_classes, self.settings.samples_per_class)
        metrics = training.evaluate(
            lambda inputs: jnp.asarray(self.embed(model, inputs)),
            model.head.classes(),
            [(self.test_inputs[chunk], chunk) for chunk in chunks],
            labels,
            counts,
            max(3, int(counts.sum())),
            k=1,
        )
        return {"top_1": metrics["p_at_1"]}

    def measure(self, model: Any) -> dict[str, float]:
        """``top_1``, and on new identities ``verification`` (with its deviation over folds) and ``rank_1``."""
        of, pairs = functools.partial(self.embed, model), self.pairs
        accuracy = training.verification(training.cosines(of(pairs.left), of(pairs.right)), pairs.same)
        found = training.rank_1(of(self.probes), of(self.mates), of(self.distractors))
        new = {"verification": accuracy.mean, "verification_std": accuracy.std, "rank_1": found}
        return {**self.top_1(model), **new}


def make_problem(
    settings: Faces, *, tests: int = 4000, pairs: int = 6000, probes: int = 2000, distractors: int = 50_000
) -> Problem:
    """The data of a study: ``tests`` new samples of training classes, and the others, of new identities."""
    identities = data.Identities(nuisance=settings.nuisance, noise=settings.noise, seed=settings.seed)
    batches = data.IdentityBatches(
        identities,
        num_classes=settings.num_classes,
        samples_per_class=settings.samples_per_class,
        batch_size=settings.batch_size,
        seed=settings.seed,
    )
    test_ids = np.random.default_rng(settings.seed).integers(0, settings.num_classes, tests)
    new = _PROBES + np.arange(probes)
    zeros = np.zeros(probes, np.int64)
    return Problem(
        settings,
        batches,
        max(1, round(settings.epochs * batches.batches_per_epoch)),
        test_ids,
        identities.inputs(test_ids, np.full(tests, settings.samples_per_class)),
        identities.pairs(pairs, first=_PAIRS, among=_AMONG),
        identities.inputs(new, zeros),
        identities.inputs(new, zeros + 1),
        identities.inputs(_DISTRACTORS + np.arange(distractors), np.zeros(distractors, np.int64)),
    )


def make_pretrained(
    problem: Problem, loss: Callable[..., Any], *, learning_rate: float, num_classes: int, num_steps: int
) -> models.Classifier:
    """A model of all the problem's classes, after training on the first few of them with the full softmax.

    A start for more classes than there is time to train from nothing: every class vector begins as the mean direction
    of its samples' embeddings, so that a few steps among all classes show what a method adds or loses, instead of how
    it begins.

    Args:
        problem: whose settings say what is trained and how.
        loss: over all classes, to train with.
        learning_rate: of that training.
        num_classes: identities that the encoder is trained on; those of the problem, if it has fewer.
        num_steps: training steps on them.

    Returns:
        The model: its encoder trained, its class vectors imprinted, of length 1.

    Source: Qi, Brown and Lowe, Low-Shot Learning with Imprinted Weights (2018).
    """
    few = dataclasses.replace(
        problem.settings, num_classes=min(num_classes, problem.settings.num_classes), learning_rate=learning_rate
    )
    few = dataclasses.replace(few, epochs=num_steps / few.batches_per_epoch)
    training_of_few = make_problem(few, tests=1, pairs=2, probes=1, distractors=1).training()
    trained, _ = training_of_few.train(None, loss, f"encoder, {few.num_classes:,} classes", None)
    whole = problem.model()
    whole.encoder = trained.encoder
    whole.head.vectors[...] = jnp.asarray(imprinted(problem, whole))
    return whole


def imprinted(problem: Problem, model: models.Classifier) -> Float[np.ndarray, "num_classes dim"]:
    """Mean direction of the embeddings of each class's first training samples, of length 1."""
    settings, identities = problem.settings, problem.batches.identities
    vectors = np.empty((settings.num_classes, settings.dim), np.float32)
    samples = min(_SAMPLES, settings.samples_per_class)
    for start in range(0, settings.num_classes, _IDENTITIES):
        ids = np.arange(start, min(start + _IDENTITIES, settings.num_classes))
        inputs = identities.inputs(np.repeat(ids, samples), np.tile(np.arange(samples), len(ids)))
        directions = _unit(problem.embed(model, inputs))
        vectors[ids] = _unit(directions.reshape(len(ids), samples, settings.dim).mean(axis=1))
    return vectors


def _unit(rows: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
