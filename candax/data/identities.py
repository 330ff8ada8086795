"""Samples of any number of identities, made when they are asked for: a small stand-in for images of faces."""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, Integer, UInt64

from candax.checks import checked
from candax.data.epochs import EpochBatches

# Independent random streams of the seed.
_IDENTITY, _SAMPLE, _MAP = range(3)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROWS = 32


class IdentityBatch(NamedTuple):
    """B samples, each of one identity.

    Attributes:
        inputs: what an encoder sees.
        labels: the identity of each sample.
    """

    inputs: Float32[np.ndarray, "B num_features"]
    labels: Int32[np.ndarray, "B 1"]


class Pairs(NamedTuple):
    """Pairs of samples, of one identity or of two."""

    left: Float32[np.ndarray, "N num_features"]
    right: Float32[np.ndarray, "N num_features"]
    same: Bool[np.ndarray, " N"]


@checked
@dataclasses.dataclass(frozen=True)
class Identities:
    """Identities on a manifold of few dimensions, seen through nuisance and a fixed nonlinear map.

    Identity c is a point z_c of ``manifold_dim`` standard normal coordinates. Its sample i has nuisance u_i (pose,
    light) and noise e_i of its own, and passes through one random map that all samples share:

        x = W tanh(A [z_c, nuisance * u_i] + a) + noise * e_i.

    Distances between inputs say more about nuisance than about identity, so that an encoder has to be trained; the
    noise limits how good the best encoder can be. The more identities there are, the closer the nearest of them are.

    Nothing is stored: sample i of identity c is a function of (seed, c, i), the same on any machine up to rounding.
    Identities that a model was not trained on are simply other ids.

    Args:
        num_features: coordinates of an input.
        manifold_dim: coordinates of an identity.
        nuisance_dim: coordinates of the nuisance.
        nuisance: strength of the nuisance, where that of the identity is 1.
        noise: standard deviation of the noise added to an input; that of the input's coordinates is about 1.
        seed: of the map and of all identities.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> identities = Identities(num_features=4)
        >>> inputs = identities.inputs(np.array([7, 7, 10**9]), np.array([0, 1, 0]))
        >>> inputs.shape, bool((inputs[:1] == identities.inputs(np.array([7]), np.array([0]))).all())
        ((3, 4), True)
    """

    num_features: int = 64
    manifold_dim: int = 16
    nuisance_dim: int = 16
    nuisance: float = 1.0
    noise: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name in ("num_features", "manifold_dim", "nuisance_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} of 1 or more; got {getattr(self, name)}")
        for name in ("nuisance", "noise", "seed"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"expected {name} of 0 or more; got {getattr(self, name)}")

    def inputs(
        self, ids: Integer[np.ndarray, " n"], samples: Integer[np.ndarray, " n"]
    ) -> Float32[np.ndarray, "n num_features"]:
        """Sample ``samples[j]`` of identity ``ids[j]``, for any numbers of 0 or more."""
        identity = _key(self.seed, _IDENTITY, ids)
        sample = _key(self.seed, _SAMPLE, ids, samples)
        own = _normal(sample, self.nuisance_dim + self.num_features)
        nuisance, noise = own[:, : self.nuisance_dim], own[:, self.nuisance_dim :]
        first, shift, second = self._map
        factors = np.concatenate([_normal(identity, self.manifold_dim), np.float32(self.nuisance) * nuisance], axis=1)
        # Products of few rows at a time: BLAS uses one thread for these, and leaves the others to the training.
        factors = np.pad(factors, ((0, -len(ids) % _ROWS), (0, 0))).reshape(-1, _ROWS, factors.shape[1])
        seen = (np.tanh(factors @ first + shift) @ second).reshape(-1, self.num_features)[: len(ids)]
        return seen + np.float32(self.noise) * noise

    def pairs(self, number: int, *, first: int, among: int = 1) -> Pairs:
        """Pairs of samples of identities from id ``first`` on; every second pair is of one identity, the others of two.

        Args:
            number: N.
            first: the lowest id; all are below ``first + (1 + among) * number``.
            among: the other identity of a pair is the nearest of this many, which makes pairs hard to tell apart.

        Returns:
            ``Pairs`` with new identities in every pair.

        Raises:
            ValueError: if ``among`` is below 1.
        """
        if among < 1:
            raise ValueError(f"expected among of 1 or more; got {among}")
        left = first + (1 + among) * np.arange(number)
        others = left[:, None] + 1 + np.arange(among)
        points = _normal(_key(self.seed, _IDENTITY, left), self.manifold_dim)
        of_others = _normal(_key(self.seed, _IDENTITY, others.ravel()), self.manifold_dim)
        apart = np.sum((of_others.reshape(number, among, -1) - points[:, None]) ** 2, axis=2)
        same = np.arange(number) % 2 == 0
        right = np.where(same, left, others[np.arange(number), np.argmin(apart, axis=1)])
        zeros = np.zeros(number, np.int64)
        return Pairs(self.inputs(left, zeros), self.inputs(right, zeros + 1), same)

    @functools.cached_property
    def _map(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        inside = self.manifold_dim + self.nuisance_dim
        hidden = 4 * inside
        numbers = _normal(_key(self.seed, _MAP, np.zeros(1, np.int64)), hidden * (inside + 1 + self.num_features))[0]
        first, shift, second = np.split(numbers, [hidden * inside, hidden * (inside + 1)])
        # Units see inputs of variance about 2: some of them are saturated, so that the map cannot be undone linearly.
        scale = np.float32(np.sqrt(2 / (self.manifold_dim + self.nuisance_dim * self.nuisance**2)))
        return (
            scale * first.reshape(inside, hidden),
            shift,
            np.float32(1.4 / np.sqrt(hidden)) * second.reshape(hidden, self.num_features),
        )


class IdentityBatches(EpochBatches[IdentityBatch]):
    """Training batches of the first ``samples_per_class`` samples of identities 0 to num_classes - 1.

    ``batches[epoch, index]`` is a pure function of its arguments and the seed. An epoch visits every sample once, in
    an order of its own, but for the last ``num_classes * samples_per_class mod batch_size``.

    Args:
        identities: where samples come from.
        num_classes: identities to train on.
        samples_per_class: samples of each identity; samples with this number or a higher one are new to a model.
        batch_size: B.
        seed: of the order.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> batches = IdentityBatches(Identities(), num_classes=3, samples_per_class=4, batch_size=6, seed=0)
        >>> labels = np.concatenate([batches[5, index].labels[:, 0] for index in range(batches.batches_per_epoch)])
        >>> np.bincount(labels).tolist()
        [4, 4, 4]
    """

    @checked
    def __init__(
        self, identities: Identities, *, num_classes: int, samples_per_class: int, batch_size: int, seed: int
    ) -> None:
        for name, number in (("num_classes", num_classes), ("samples_per_class", samples_per_class)):
            if number < 1:
                raise ValueError(f"expected {name} of 1 or more; got {number}")
        super().__init__(num_classes * samples_per_class, batch_size, seed, "samples")
        self.identities = identities
        self.num_classes = num_classes
        self.samples_per_class = samples_per_class

    def batch(self, epoch: int, index: int) -> IdentityBatch:
        """The batch at a position that exists."""
        ids, samples = np.divmod(self.rows(epoch, index), self.samples_per_class)
        return IdentityBatch(self.identities.inputs(ids, samples), ids.astype(np.int32)[:, None])

    @property
    def identity(self) -> dict[str, Any]:
        """All that the batches depend on, as JSON values."""
        sizes = {"num_classes": self.num_classes, "samples_per_class": self.samples_per_class}
        return self.described(identities=dataclasses.asdict(self.identities), **sizes)


def _mixed(state: UInt64[np.ndarray, "*n"]) -> UInt64[np.ndarray, "*n"]:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014): every bit depends on every bit."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _key(seed: int, stream: int, *numbers: Integer[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """A key for each row of numbers, from which its random numbers follow."""
    key = _mixed(np.array([seed], np.uint64) * _GOLDEN + np.uint64(stream))
    for number in numbers:
        key = _mixed(key + (number.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return key


def _normal(key: UInt64[np.ndarray, " n"], number: int) -> Float32[np.ndarray, "n number"]:
    """Standard normal numbers for each key: the stream of SplitMix64, by Box and Muller's method."""
    steps = np.arange(1, (number + 1) // 2 + 1, dtype=np.uint64) * _GOLDEN
    bits = _mixed(key[:, None] + steps)
    # 24 bits each, as many as float32 holds. The radius is never 0, which has no logarithm.
    radius = ((bits >> np.uint64(40)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-24)
    angle = (bits & np.uint64(0xFFFFFF)).astype(np.float32) * np.float32(2 * np.pi * 2**-24)
    radius = np.sqrt(-2 * np.log(radius))
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :number]
