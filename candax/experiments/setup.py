"""What `compare`, `train` and `evaluate` share: settings, and the model, batches and program that follow from them."""

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import optax
import tyro
from flax import nnx

from candax import data, losses, models, training
from candax.base import Loss, Sampler
from candax.blocks import DEFAULT_BLOCK_SIZE
from candax.recipes.extreme.catalog import LOSSES, SAMPLERS, LossName, SamplerName


@dataclasses.dataclass(frozen=True)
class Settings:
    """The data, the model and how it is trained."""

    dataset: str = "python-stdlib"
    """python-stdlib, or a folder with train and test files in the Extreme Classification Repository's text format."""
    tf_idf: bool = False
    """Weigh counted features by how rare they are; for data whose feature values are counts."""
    num_sampled: int = 1024
    """Candidates that a batch shares."""
    top_k: int = 64
    """Candidates of each example with the sampler top_k, whose step costs time in proportion to the classes."""
    epochs: float | None = None
    """Passes over the training set; see steps."""
    steps: int | None = None
    """Training steps, instead of epochs."""
    batch_size: int = 256
    """Examples a step."""
    dim: int = 128
    """Width of the hidden layer and of the class vectors."""
    learning_rate: float = 5e-3
    """Of Adam."""
    seed: int = 0
    """Of the model's initial values, the order of the batches and the candidates."""


def check(settings: Settings) -> None:
    """Raises ValueError for settings out of range."""
    for name in ("num_sampled", "top_k", "batch_size", "dim"):
        value = getattr(settings, name)
        if value < 1:
            raise ValueError(f"expected --{name.replace('_', '-')} of 1 or more, got {value}.")
    for name in ("learning_rate", "epochs", "steps"):
        value = getattr(settings, name)
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"expected --{name.replace('_', '-')} above 0, got {value}.")
    if settings.epochs is not None and settings.steps is not None:
        raise ValueError("expected --epochs or --steps, got both. Leave one out.")
    if settings.seed < 0:
        raise ValueError(f"expected --seed of 0 or more, got {settings.seed}.")


def writable_folder(path: Path) -> Path:
    """Creates a folder where missing and raises OSError now, not after training, if nothing can be written there."""
    path.mkdir(parents=True, exist_ok=True)
    probe = path / ".writable"
    probe.touch()
    probe.unlink()
    return path


def load(settings: Settings) -> data.Dataset:
    """The data set."""
    dataset = data.load(settings.dataset)
    return data.tf_idf(dataset) if settings.tf_idf else dataset


def make_batches(settings: Settings, dataset: data.Dataset) -> data.Batches:
    """The training batches."""
    return data.Batches(dataset.train, settings.batch_size, settings.seed, flat=True)


def num_steps(settings: Settings, batches: data.Batches, default_epochs: float) -> int:
    """Training steps from --steps or --epochs."""
    if settings.steps is not None:
        return settings.steps
    epochs = default_epochs if settings.epochs is None else settings.epochs
    return max(1, round(epochs * batches.batches_per_epoch))


def make_program(
    settings: Settings, dataset: data.Dataset, sampler: Sampler | None, loss: Callable[..., Any]
) -> training.Program:
    """A sparse-feature MLP before a head over all classes of the data set, trained with Adam."""
    rngs = nnx.Rngs(settings.seed)
    encoder = models.SparseMLP(dataset.num_features, settings.dim, rngs=rngs)
    counts = dataset.label_counts(dataset.train)
    head = models.Head(dataset.num_classes, settings.dim, counts=counts, rngs=rngs)
    model = models.Classifier(encoder, head)
    return training.build(model, sampler=sampler, loss=loss, optimizer=optax.adam(settings.learning_rate))


def sampler_and_loss(settings: Settings, sampler: SamplerName, loss: LossName) -> tuple[Sampler, Loss]:
    """A sampler and a loss by name."""
    number = min(settings.top_k, settings.num_sampled) if sampler == "top_k" else settings.num_sampled
    return SAMPLERS[sampler](number), LOSSES[loss]


def faster_full_softmax(settings: Settings, dataset: data.Dataset, batches: data.Batches) -> Callable[..., Any]:
    """The full softmax in the form that takes less time here: at once if that fits into memory, or in class blocks."""
    forms: dict[str, Callable[..., Any]] = {
        "blocks": functools.partial(losses.full_softmax, block_size=DEFAULT_BLOCK_SIZE),
        "plain": losses.full_softmax,
    }
    if 3 * 4 * settings.batch_size * dataset.num_classes > _memory_left():
        return forms["blocks"]
    seconds = {}
    for name, form in forms.items():
        program = make_program(settings, dataset, None, form)
        state = program.init(settings.seed)
        times = []
        for index in range(4):
            batch = batches[0, index % batches.batches_per_epoch]
            start = time.perf_counter()
            state, loss = program.step(state, batch)
            jax.block_until_ready((state, loss))
            times.append(time.perf_counter() - start)
        seconds[name] = min(times[1:])
    return forms[min(seconds, key=lambda name: seconds[name])]


def _memory_left() -> float:
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return 4e9  # On CPU JAX does not say; half of what a small machine has.


Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]
