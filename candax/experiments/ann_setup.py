"""What the experiments of ANN Softmax share: generated identities, the model, and how it is trained and measured."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Float, Integer
from scipy.sparse import csr_array

from candax import data, models, training
from candax.base import Sampler

# Ids that no model is trained on: of the pairs, of those looked for, and of the distractors.
_PAIRS, _PROBES, _DISTRACTORS = 1 << 40, 1 << 41, 1 << 42
# The other identity of a pair is the nearest of so many.
_AMONG = 64
# Samples that an encoder sees at a time.
_CHUNK = 1024
# Where the curve is measured, as shares of the steps.
_MEASURED_AT = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Identities, the model, and how it is trained."""

    num_classes: int = 3000
    """Identities to train on."""
    samples_per_class: int = 20
    """Training samples of each."""
    epochs: float = 5
    """Passes over the samples."""
    nuisance: float = 1.25
    """How hard the identities are to tell: strength of what changes from sample to sample."""
    noise: float = 0.1
    """Noise that no encoder can remove."""
    batch_size: int = 256
    """Examples a step."""
    hidden: int = 256
    """Width of the encoder's hidden layer."""
    dim: int = 64
    """Width of embeddings and class vectors."""
    learning_rate: float = 1e-2
    """Of Adam at the start; it falls to 0 by half a cosine."""
    epsilon: float = 1e-4
    """Of Adam, which divides by the root mean square gradient plus this. Over all classes most gradients are next to
    nothing, and the usual 1e-8 makes full steps of them, whose noise undoes what the others learn: with it the full
    softmax of 10,000 classes is at .59 after 800 steps, where it is at .82 with 1e-4 (ANN Softmax .82 and .84)."""
    rate: float = 0.1
    """Candidates of a group as a share of all classes: the paper's r."""
    num_groups: int = 8
    """Groups of examples that share candidates: the paper's g."""
    seed: int = 0
    """Of identities, initial values, batches and candidates."""

    @property
    def num_sampled(self) -> int:
        """Candidates of a group."""
        return max(1, round(self.rate * self.num_classes))


@dataclasses.dataclass(frozen=True)
class Measured:
    """A trained model, measured: ``top_1`` on new samples of the training classes, the others on new identities."""

    top_1: float
    verification: float
    verification_std: float
    rank_1: float


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained program; ``records`` are those of the evaluations on the way, with ``seconds`` of training alone."""

    program: training.Program
    state: training.TrainState
    ms_per_step: float
    records: list[dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Training batches, and what is measured on: new samples of the classes, pairs, probes and distractors."""

    settings: Settings
    batches: data.IdentityBatches
    num_steps: int
    test_ids: Integer[np.ndarray, "N"]
    test_inputs: Float[np.ndarray, "N num_features"]
    pairs: data.Pairs
    probes: Float[np.ndarray, "P num_features"]
    mates: Float[np.ndarray, "P num_features"]
    distractors: Float[np.ndarray, "D num_features"]


def check(settings: Settings) -> None:
    """Raises ValueError for settings out of range."""
    for name in ("num_classes", "samples_per_class", "batch_size", "hidden", "dim", "num_groups"):
        if getattr(settings, name) < 1:
            raise ValueError(f"expected --{name.replace('_', '-')} of 1 or more, got {getattr(settings, name)}.")
    for name in ("epochs", "learning_rate", "epsilon"):
        if not 0 < getattr(settings, name) < float("inf"):
            raise ValueError(f"expected --{name.replace('_', '-')} above 0, got {getattr(settings, name)}.")
    if not 0 < settings.rate <= 1:
        raise ValueError(f"expected --rate above 0 and at most 1, got {settings.rate}.")
    if settings.batch_size % settings.num_groups:
        raise ValueError(
            f"expected --num-groups that divides --batch-size, got {settings.num_groups} and {settings.batch_size}."
        )
    if settings.seed < 0:
        raise ValueError(f"expected --seed of 0 or more, got {settings.seed}.")


def make_problem(
    settings: Settings, *, tests: int = 4000, pairs: int = 6000, probes: int = 2000, distractors: int = 50_000
) -> Problem:
    """The data of an experiment: ``tests`` new samples of training classes, the others of new identities."""
    check(settings)
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


def make_optimizer(problem: Problem) -> optax.GradientTransformation:
    """Adam with a falling learning rate."""
    settings = problem.settings
    return optax.adam(optax.cosine_decay_schedule(settings.learning_rate, problem.num_steps), eps=settings.epsilon)


def make_model(problem: Problem, *, num_projected: int | None = None) -> models.Classifier:
    """A perceptron before a head of cosines; ``num_projected`` puts a random projection between them."""
    settings, rngs = problem.settings, nnx.Rngs(problem.settings.seed)
    encoder: Any = models.DenseMLP(problem.test_inputs.shape[1], (settings.hidden,), settings.dim, rngs=rngs)
    if num_projected is not None:
        encoder = models.RandomProjection(encoder, settings.dim, num_projected, rngs=rngs)
    head = models.Head(settings.num_classes, num_projected or settings.dim, normalized=True, rngs=rngs)
    return models.Classifier(encoder, head)


def make_program(
    problem: Problem, sampler: Sampler | None, loss: Callable[..., Any], *, model: models.Classifier | None = None
) -> training.Program:
    """A model, by default that of ``make_model``, trained with Adam."""
    model = make_model(problem) if model is None else model
    return training.build(model, sampler=sampler, loss=loss, optimizer=make_optimizer(problem))


def train(
    problem: Problem,
    name: str,
    sampler: Sampler | None,
    loss: Callable[..., Any],
    *,
    model: models.Classifier | None = None,
    evaluate: Callable[[training.Program, training.TrainState], dict[str, float]] | None = None,
) -> Trained:
    """Trains one method; ``evaluate`` is called on the way, off the clock."""
    program = make_program(problem, sampler, loss, model=model)
    if any(program.schedule(step) for step in range(problem.num_steps)):
        # Compiled before the clock starts, like the step.
        jax.block_until_ready(program.refresh(program.init(problem.settings.seed)))
    points = {max(1, round(share * problem.num_steps)) for share in _MEASURED_AT}
    state, records = training.fit_program(
        program,
        program.init(problem.settings.seed),
        problem.batches,
        num_steps=problem.num_steps,
        log_every=max(1, min(50, problem.num_steps // 10)),
        evaluate=None if evaluate is None else functools.partial(evaluate, program),
        evaluate_at=lambda step: step in points,
        description=name,
    )
    # The first step compiles and is not on the clock.
    milliseconds = 1e3 * records[-1]["seconds"] / max(1, problem.num_steps - 1)
    return Trained(program, state, milliseconds, [record for record in records if "loss" not in record])


def embed(
    program: training.Program, state: training.TrainState, inputs: Float[np.ndarray, "N num_features"]
) -> Float[np.ndarray, "N dim"]:
    """Embeddings of any number of inputs."""
    parts = []
    for start in range(0, len(inputs), _CHUNK):
        part = inputs[start : start + _CHUNK]
        batch = data.IdentityBatch(np.pad(part, ((0, _CHUNK - len(part)), (0, 0))), np.zeros((_CHUNK, 1), np.int32))
        parts.append(np.asarray(program.embed(state, batch))[: len(part)])
    return np.concatenate(parts)


def top_1(problem: Problem, program: training.Program, state: training.TrainState) -> float:
    """The share of new samples of the training classes whose class is ranked first."""
    number, num_classes = len(problem.test_ids), problem.settings.num_classes
    labels = csr_array((np.ones(number, bool), problem.test_ids, np.arange(number + 1)), shape=(number, num_classes))
    chunks = [slice(start, min(start + _CHUNK, number)) for start in range(0, number, _CHUNK)]
    counts = np.full(num_classes, problem.settings.samples_per_class)
    metrics = training.evaluate(
        lambda inputs: jnp.asarray(embed(program, state, inputs)),
        program.classes(state),
        [(problem.test_inputs[chunk], chunk) for chunk in chunks],
        labels,
        counts,
        max(3, int(counts.sum())),
        k=1,
    )
    return metrics["p_at_1"]


def measure(problem: Problem, program: training.Program, state: training.TrainState) -> Measured:
    """All measures of a trained model."""
    of = functools.partial(embed, program, state)
    pairs = problem.pairs
    accuracy = training.verification(training.cosines(of(pairs.left), of(pairs.right)), pairs.same)
    found = training.rank_1(of(problem.probes), of(problem.mates), of(problem.distractors))
    return Measured(top_1(problem, program, state), accuracy.mean, accuracy.std, found)
