"""Measuring a model while it trains: which data, which metric, how often, and when to stop."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from candax.checks import checked
from candax.training.feed import on_host

# Names that every record has itself, so that no metric may use them.
RESERVED = ("step", "seconds")
# Of the user's own kind of model.
Metric = Callable[[Any, Iterable[Any]], Any]


@checked
@dataclasses.dataclass(frozen=True)
class Validation:
    """What ``fit`` measures on the way.

    Args:
        batches: an iterable that can be gone through again and again, such as a list or a loader; or a function that
            makes an iterable anew each time. (A generator would be empty the second time: that is an error.)
        metric: ``metric(model, batches) -> number``, or a dict of numbers; ``mean_over`` makes one of a function of one
            batch. The model is a copy in evaluation mode; arrays taken from it live until the next step. With several
            processes, the numbers of the first one count.
        every: steps between measurements, "epoch" for the ends of epochs, or a function of the number of steps done.
        best: name of the number whose best value is looked for, and whose checkpoint is kept in ``folder/best``. A
            number returned alone is named "metric". None: there is no best. A run that goes on with another name or
            ``mode`` looks for its best anew. NaN of this number ends the run with an error.
        mode: whether the best is the "max" or the "min".
        patience: stop after so many measurements in a row without a better one; None: never.
        epochs: with ``every="epoch"``, epochs between measurements.

    Raises:
        ValueError: for arguments that do not fit each other.

    Example:
        >>> import candax as cx
        >>> def count(model, batches):
        ...     return sum(1 for batch in batches)
        >>> cx.training.Validation([1, 2], count, every=100, best="metric", patience=3).mode
        'max'
    """

    batches: Iterable[Any] | Callable[[], Iterable[Any]]
    metric: Metric
    every: int | Literal["epoch"] | Callable[[int], bool] = "epoch"
    best: str | None = None
    mode: Literal["max", "min"] = "max"
    patience: int | None = None
    epochs: int = 1

    def __post_init__(self) -> None:
        if not (callable(self.every) or self.every == "epoch" or (isinstance(self.every, int) and self.every >= 1)):
            raise ValueError(f"expected every to be a number of steps >= 1, 'epoch' or a function, got {self.every!r}.")
        if self.epochs < 1 or (self.epochs > 1 and self.every != "epoch"):
            raise ValueError(f"expected epochs >= 1, and every='epoch' with it, got {self.epochs} and {self.every!r}.")
        if self.patience is not None and (self.patience < 1 or self.best is None):
            raise ValueError(
                f"expected patience >= 1, and best= to name the number it looks at, got patience={self.patience!r} and "
                f"best={self.best!r}."
            )

    @property
    def measure_of_best(self) -> list[str | None]:
        """What a best value is a value of, as JSON values: values of others cannot be compared with it."""
        return [self.best, self.mode]

    def due(self, done: int, ended: int | None) -> bool:
        """Whether to measure after so many steps, of which the last may have ended the ``ended``-th epoch."""
        if self.every == "epoch":
            return ended is not None and ended % self.epochs == 0
        return self.every(done) if callable(self.every) else done % self.every == 0

    def measure(self, model: nnx.Module) -> dict[str, float]:
        """The metric of a copy of the model: nothing that the metric does can change the model itself.

        Raises:
            ValueError: for data that are used up, and for metrics that return anything but numbers.
        """
        copy = nnx.merge(*nnx.split(model), copy=True)
        copy.eval()
        return numbers(self.metric(copy, self._fresh()))

    def _fresh(self) -> Iterator[Any]:
        """The batches; ValueError where there are none."""
        # As in ``fit``: what can be called as well, such as a loader with a ``__call__``, is iterated.
        batches: Any = self.batches
        if callable(batches) and not isinstance(batches, Iterable):
            batches = batches()
        if not isinstance(batches, Iterable):
            raise ValueError(f"expected iterable validation batches, got {type(batches).__name__}.")
        empty = True
        for number, batch in enumerate(batches):
            empty = False
            yield on_host(batch, f"validation batch {number}")
        if empty:
            raise ValueError(
                f"expected validation batches, got a {type(batches).__name__} without any. An iterator can be used "
                "once only: pass a list, a loader, or a function that makes the iterator anew."
            )

    def better(self, value: float, best: float | None) -> bool:
        """Whether a value is the best so far; NaN and the infinity at the bad end never are."""
        if self.mode == "max":
            return value > (-math.inf if best is None else best)
        return value < (math.inf if best is None else best)

    def no_best(self, value: float, step: int) -> ValueError:
        """The error where a value can be compared with none, or where all until the end of patience are infinite."""
        return ValueError(
            f"expected numbers of {self.best!r} to choose the best by, got {value} after step {step}"
            f"{'' if math.isnan(value) else ', and no finite one before'}. An id or a label out of range gives NaN: "
            "candax.check(model, inputs, labels=labels) of a validation batch names it. A label of -1 is no class, of "
            "infinite nats: give it no weight (mean_over takes (values, weights)). A mean over nothing is NaN, too. "
            "Then call fit again: with a folder, the run goes on from here and measures first."
        )


def numbers(found: Any) -> dict[str, float]:
    """What a metric returned, as numbers by name.

    Raises:
        ValueError: for anything but numbers.
    """
    named: Mapping[str, Any] = found if isinstance(found, Mapping) else {"metric": found}
    result = {}
    for name, value in named.items():
        dtype = np.asarray(value).dtype
        is_number = jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_
        if not isinstance(name, str) or np.ndim(value) or not is_number:
            shape = list(np.shape(value))
            raise ValueError(
                f"expected a metric to return a number or a dict of numbers by name, got {type(value).__name__}"
                f"{shape or ''} for {name!r}: return its mean, say."
            )
        if name in RESERVED:
            raise ValueError(f"expected another name for a metric than {name!r}, which records have themselves.")
        result[name] = float(value)
    return result


@checked
def mean_over(of_batch: Callable[[Any, Any], dict[str, Any]]) -> Metric:
    """A metric for ``Validation`` from a function of one batch: means over everything that it returns.

    Sums and numbers of elements are added up over all batches, so that batches of different sizes count as they should.

    Args:
        of_batch: ``of_batch(model, batch) -> {name: values}``, or ``{name: (values, weights)}`` where some do not
            count; it is compiled by ``nnx.jit``.

    Returns:
        ``metric(model, batches) -> {name: sum(w v) / sum(w)}``; NaN where all weights are 0.

    Example:
        >>> import candax as cx
        >>> metric = cx.training.mean_over(lambda model, batch: {"even": batch % 2 == 0})
        >>> metric(nnx.Dict(), [np.arange(3), np.arange(2)])
        {'even': 0.6000000238418579}
    """

    @functools.partial(nnx.jit)
    def sums(model: nnx.Module, batch: Any) -> dict[str, tuple[jax.Array, jax.Array]]:
        def of(found: Any) -> tuple[jax.Array, jax.Array]:
            values, weights = found if isinstance(found, tuple) else (found, None)
            values = jnp.asarray(values, jnp.float32)
            weights = jnp.asarray(1.0 if weights is None else weights, jnp.float32)
            if weights.ndim > values.ndim or any(
                mine not in (1, other) for mine, other in zip(weights.shape[::-1], values.shape[::-1], strict=False)
            ):
                raise ValueError(
                    f"mean_over: expected a weight for each value, or weights that broadcast to them, got weights of "
                    f"shape {list(weights.shape)} with values of shape {list(values.shape)}."
                )
            weights = jnp.broadcast_to(weights, values.shape)
            return jnp.sum(jnp.where(weights > 0, values * weights, 0)), jnp.sum(weights)

        return {name: of(found) for name, found in of_batch(model, batch).items()}

    def metric(model: nnx.Module, batches: Iterable[Any]) -> dict[str, float]:
        totals: dict[str, np.ndarray] = {}
        for batch in batches:
            for name, parts in sums(model, batch).items():
                totals[name] = totals.get(name, np.zeros(2)) + np.array([float(part) for part in parts])
        return {
            name: float(np.float32(value / weight)) if weight else math.nan for name, (value, weight) in totals.items()
        }

    return metric
