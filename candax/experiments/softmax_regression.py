"""Softmax regression on data drawn from the model: what figures 2a and 2b of Complementary Sum Sampling share.

The model is ``p(c | x) ~ exp(w_c . x)``, without biases. Class vectors and inputs of the true model are standard
normal: the paper names no scale, and with this one about a quarter of C = 1000 classes is never among N = 2000 labels
and f^0.54 sums to 20, as the paper says. There are few classes, so gradients of the class vectors are dense and
momentum is plain (row-sparse momentum is lazy, another algorithm).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

import candax as cx
from candax import losses
from candax.base import Classes, KeyArray, Sampler, pytree
from candax.recipes import common

MOMENTUM = 0.99
RECORD_EVERY = 50
"""Iterations between two evaluations of the exact log-likelihood."""
FALL = 0.1
"""Nats by which a curve that converges may fall below its best so far."""
NUM_SAMPLED = 20


class Method(NamedTuple):
    """A loss and the sampler of its candidates; without a sampler the loss needs all classes, like ``full_softmax``."""

    sampler: Sampler | None
    loss: Callable[..., Float[Array, " B"]]


EXACT = Method(None, losses.full_softmax)


@pytree
class Problem:
    """Points with one label each, the labels' frequencies, and how well the model that drew them explains them."""

    inputs: Float[Array, "N dim"]
    labels: Int[Array, "N 1"]
    counts: Float[Array, " num_classes"]
    true_log_likelihood: Float[Array, ""]

    def classes(self, vectors: Float[Array, "num_classes dim"]) -> Classes:
        """An output layer for this problem."""
        return Classes(vectors, None, self.counts, jnp.int32(self.counts.shape[0]))

    def log_likelihood(self, vectors: Float[Array, "num_classes dim"]) -> Float[Array, ""]:
        """The exact mean log-likelihood per point, in nats."""
        return -jnp.mean(losses.full_softmax(self.inputs, self.labels, self.classes(vectors)))


def draw_problem(key: KeyArray, *, num_classes: int, num_points: int, dim: int) -> Problem:
    """Draws class vectors and inputs from the standard normal distribution, and labels from the model.

    Example:
        >>> problem = draw_problem(jax.random.key(0), num_classes=10, num_points=50, dim=3)
        >>> float(problem.counts.sum())
        50.0
    """
    key_vectors, key_inputs, key_labels = jax.random.split(key, 3)
    vectors = jax.random.normal(key_vectors, (num_classes, dim))
    inputs = jax.random.normal(key_inputs, (num_points, dim))
    labels = jax.random.categorical(key_labels, inputs @ vectors.T)
    counts = jnp.bincount(labels, length=num_classes).astype(jnp.float32)
    problem = Problem(inputs, labels[:, None], counts, jnp.zeros(()))
    return dataclasses.replace(problem, true_log_likelihood=problem.log_likelihood(vectors))


@dataclasses.dataclass(frozen=True)
class Regression(common.Settings):
    """Settings that figures 2a and 2b share."""

    num_points: common.Count = 2000
    """Number of points, N."""
    dim: common.Count = 100
    """Coordinates of an input, D, in separable problems."""
    batch_size: common.Count = 50
    """Points per iteration."""
    iterations: common.Count = 2000
    """Steps of stochastic gradient descent; the control of figure 2b takes twice as many."""

    QUICK: ClassVar = {"num_points": 300, "dim": 60, "batch_size": 20, "iterations": 300}

    def check(self) -> None:
        """See ``Settings``; likelihoods are recorded every ``RECORD_EVERY`` iterations."""
        super().check()
        whole = self.iterations % RECORD_EVERY == 0
        self.expect(whole, f"--iterations to be a positive multiple of {RECORD_EVERY}", "iterations")


def as_by_default(settings: common.Settings, *free: str) -> bool:
    """Whether a run has the settings that the module's findings are of.

    Args:
        settings: of the run.
        free: settings on which no finding depends; neither does one on where results are written.
    """
    default, free = type(settings)(), ("quick", "out", *free)
    names = [field.name for field in dataclasses.fields(settings) if field.name not in free]
    return all(getattr(settings, name) == getattr(default, name) for name in names)


def here(settings: common.Settings, finding: str, *free: str) -> str:
    """A line of a panel's title that says what was found; none where ``as_by_default`` does not hold."""
    return f"\nhere: {finding}" if as_by_default(settings, *free) else ""


class Curves(NamedTuple):
    """Exact mean log-likelihood per point at every learning rate, while training, and the class vectors at the end."""

    rates: np.ndarray
    log_likelihood: np.ndarray
    vectors: Float[Array, "rates num_classes dim"]

    def fall(self) -> np.ndarray:
        """For each rate how far its curve ever falls below its best so far, in nats; inf where it is not finite."""
        best_so_far = np.maximum.accumulate(self.log_likelihood, axis=1)
        fall = (best_so_far - self.log_likelihood).max(axis=1)
        return np.where(np.isfinite(self.log_likelihood).all(axis=1), fall, np.inf)

    def figures(self, index: int) -> dict[str, Any]:
        """The figures of one learning rate, and the final figures of all."""
        curve, names = self.log_likelihood[index], [f"{rate:g}" for rate in self.rates]
        return {
            "learning_rate": float(self.rates[index]),
            "final": float(curve[-1]),
            "final_by_rate": dict(zip(names, self.log_likelihood[:, -1].tolist(), strict=True)),
            "curve": {"iteration": np.arange(len(curve)) * RECORD_EVERY, "log_likelihood": curve},
        }


def largest_converging(*curves: Curves) -> int:
    """The index of the largest learning rate, the same for all the curves, at which each of them converges.

    It converges where the exact log-likelihood never falls more than ``FALL`` nats below its best so far. A final value
    close to the best would not be enough: the data are separable, so after any catastrophe, of hundreds of nats,
    training climbs back towards 0.

    Raises:
        ValueError: if there is no such rate.
    """
    converges = np.all([one.fall() <= FALL for one in curves], axis=0)
    if not converges.any():
        raise ValueError(f"expected one of the learning rates {curves[0].rates} to converge: try lower ones.")
    return int(np.flatnonzero(converges)[-1])


def best_at_end(*curves: Curves) -> int:
    """The index of the learning rate, the same for all the curves, at which the worst of them ends highest."""
    ends = np.min([one.log_likelihood[:, -1] for one in curves], axis=0)
    return int(np.argmax(np.where(np.isnan(ends), -np.inf, ends)))


def train(
    problem: Problem,
    method: Method,
    rates: tuple[float, ...],
    *,
    key: KeyArray,
    iterations: int,
    batch_size: int,
    decay: bool = False,
) -> Curves:
    """Stochastic gradient descent from zero class vectors on the mean loss of a batch, at all learning rates at once.

    Batches (drawn with replacement) and samples are the same for all rates, and batches for all methods. With ``decay``
    the rate falls linearly to 0 over the second half of the iterations.
    """
    shape = problem.counts.shape[0], problem.inputs.shape[1]
    schedule = optax.linear_schedule(1.0, 0.0, iterations - iterations // 2, iterations // 2)

    def one_rate(rate: Array, problem: Problem, state: Any, key: KeyArray) -> tuple[Array, Array]:
        optimizer = optax.sgd(lambda step: rate * (schedule(step) if decay else 1.0), momentum=MOMENTUM)

        def mean_loss(vectors: Array, points: Array, key_draw: KeyArray) -> Float[Array, ""]:
            batch = problem.inputs[points], problem.labels[points], problem.classes(vectors)
            return cx.sampled_loss(*batch, **method._asdict(), state=state, key=key_draw)

        def step(carry: tuple[Array, Any], index: Array) -> tuple[tuple[Array, Any], None]:
            vectors, momentum = carry
            key_batch, key_draw = jax.random.split(jax.random.fold_in(key, index))
            points = jax.random.randint(key_batch, (batch_size,), 0, problem.inputs.shape[0])
            updates, momentum = optimizer.update(jax.grad(mean_loss)(vectors, points, key_draw), momentum)
            return (jnp.asarray(optax.apply_updates(vectors, updates)), momentum), None

        def until_record(carry: tuple[Array, Any], first: Array) -> tuple[tuple[Array, Any], Array]:
            carry, _ = jax.lax.scan(step, carry, first + jnp.arange(RECORD_EVERY))
            return carry, problem.log_likelihood(carry[0])

        vectors = jnp.zeros(shape)
        start = problem.log_likelihood(vectors)
        carry = vectors, optimizer.init(vectors)
        carry, rest = jax.lax.scan(until_record, carry, jnp.arange(0, iterations, RECORD_EVERY))
        return jnp.concatenate([start[None], rest]), carry[0]

    @jax.jit
    def all_rates(problem: Problem, state: Any, rates: Array, key: KeyArray) -> tuple[Array, Array]:
        return jax.vmap(lambda rate: one_rate(rate, problem, state, key))(rates)

    # Outside the compiled function, where samplers can check the counts.
    state = None if method.sampler is None else method.sampler.init(key, problem.classes(jnp.zeros(shape)))
    log_likelihood, vectors = all_rates(problem, state, jnp.asarray(rates, jnp.float32), key)
    return Curves(np.asarray(rates), np.asarray(log_likelihood, np.float64), vectors)


def panel(
    title: str, where: Any, true_model: Any, *, sign: int, y: str = "log_likelihood", **axes: Any
) -> common.Panel:
    """Curves beside what the true model reaches; ``sign`` -1: minus the likelihood, on a log scale."""
    lines = common.curves("iteration", y, where=where)
    ylabel = f"{'minus ' if sign < 0 else ''}exact log-likelihood per point [nats]"
    shared = {"title": title, "xlabel": "iteration", "ylabel": ylabel, "yscale": "log" if sign < 0 else "linear"}
    return common.Panel((lines, common.level("true model", true_model)), shared | axes)
