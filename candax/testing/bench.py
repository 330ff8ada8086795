"""A sampler on the bench: initialised, with a query, and compiled once for all laws."""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from candax.base import Candidates, Classes, Query, Sampler
from candax.testing.broken import Clock, LawBroken
from candax.testing.problems import BATCH_SIZE, Support, every_valid_class, make_classes, make_query

# Draws per call of the compiled function, which serves all laws but the one law.
DRAWS = 512


@dataclasses.dataclass(frozen=True)
class Case:
    """What ``check_sampler`` is told about a sampler; its docstring explains each field."""

    support: Support = every_valid_class
    also_counted: Support | None = None
    num_groups: int | None = 1
    delta: float = 0.01
    random: bool = True
    cautious: bool = False
    cost_grows: bool = False
    fills_slots: bool = True
    each_group: bool = False
    num_valid: int = 21
    num_classes: int = 24


def build(sampler: Any) -> Sampler:
    """The sampler itself, or what its factory builds."""
    if isinstance(sampler, Sampler):
        return sampler
    wanted = "expected a candax.Sampler or a function without arguments that returns one"
    if not callable(sampler):
        raise TypeError(f"{wanted}; got {type(sampler).__name__}: {sampler!r}")
    try:
        inspect.signature(sampler).bind()
    except TypeError:
        raise TypeError(
            f"{wanted}; got a function that needs arguments {inspect.signature(sampler)}: bind them, as in "
            f"lambda: my_sampler(6)"
        ) from None
    built = sampler()
    if not isinstance(built, Sampler):
        raise TypeError(f"{wanted}; its factory returned {type(built).__name__}: return candax.Sampler(init=, ...)")
    return built


class Bench:
    """A sampler with what the laws ask of it; ``on`` puts the same sampler on other classes without compiling anew."""

    def __init__(self, factory: Any, case: Case, clock: Clock) -> None:
        self.case, self.clock = case, clock
        self.sampler = build(factory)
        self.groups = BATCH_SIZE if case.num_groups is None else case.num_groups
        # True: sample has been compiled for all that it should ever be given, and must not be traced again.
        self.complete = False

        def sample(*args: Any) -> Candidates:
            if self.complete:
                raise LawBroken("sample is traced again after refresh, and so would be compiled again in training")
            return self.sampler.sample(*args)

        def many(state: Any, key: jax.Array, query: Query) -> Candidates:
            return jax.vmap(sample, in_axes=(None, 0, None))(state, jax.random.split(key, DRAWS), query)

        def stated(state: Any, found: Candidates, query: Query) -> tuple[jax.Array, jax.Array]:
            ids = jnp.broadcast_to(jnp.arange(query.classes.num_classes), (self.groups, query.classes.num_classes))
            count = functools.partial(self.sampler.log_expected_count, state, found)
            return count(found.ids, query), count(ids.astype(jnp.int32), query)

        def mean_stated(state: Any, found: Candidates, query: Query) -> jax.Array:
            of_all = jax.vmap(lambda found: stated(state, found, query)[1])(found)
            return jnp.mean(jnp.exp(of_all), axis=0)

        self._many, self._one, self._stated = jax.jit(many), jax.jit(sample), jax.jit(stated)
        self._mean_stated = jax.jit(mean_stated)
        # Jitted as a whole: otherwise each operation would be compiled by itself, in hundreds of programs.
        self.init, self.update, self.refresh = (
            jax.jit(function) for function in (self.sampler.init, self.sampler.update, self.sampler.refresh)
        )
        self._place(self.classes_of(case.num_valid))
        self._check_types()

    def classes_of(self, num_valid: int, seed: int = 0) -> Classes:
        """Of ``make_classes``; with equal counts where the law is over batches: all classes are labels as often."""
        classes = make_classes(num_valid, self.case.num_classes, seed=seed)
        if self.sampler.facts.law_over != "batch":
            return classes
        assert classes.counts is not None
        rows = jnp.arange(classes.num_classes)
        return dataclasses.replace(classes, counts=jnp.where(rows < num_valid, 1.0, classes.counts))

    def _place(self, classes: Classes, state: Any = None) -> None:
        self.classes = classes
        self.query = make_query(jax.random.key(11), classes)
        self.state = self.init(jax.random.key(12), classes) if state is None else state
        self.resupport()

    def resupport(self) -> None:
        """Asks for the support, which may follow classes and query."""
        # What may be drawn and what may be counted; what can be and must be. They differ after an update alone.
        self.support = self.certain = self._support(self.case.support, "support")
        self.counted = self.support
        if self.case.also_counted is not None:
            self.counted = self.support | self._support(self.case.also_counted, "also_counted")
        self.required = self.counted

    def _support(self, function: Support, name: str) -> np.ndarray:
        support = np.asarray(function(self.classes, self.query, self.groups))
        shape = (self.groups, self.classes.num_classes)
        if support.shape != shape or support.dtype != bool:
            raise ValueError(
                f"{name}: expected bool[groups, num_classes] = bool{list(shape)}; it returned "
                f"{support.dtype}{list(support.shape)}"
            )
        return support

    def _check_types(self) -> None:
        """What is drawn has the shapes and dtypes of ``Candidates``: all other laws rely on this."""
        found = jax.eval_shape(self.sampler.sample, self.state, jax.random.key(0), self.query)
        if not isinstance(found, Candidates):
            raise TypeError(f"sample: expected it to return candax.Candidates; it returned {type(found).__name__}")
        for name, dtype in (("ids", jnp.int32), ("log_expected_count", jnp.float32), ("mask", jnp.bool_)):
            field = getattr(found, name)
            if field.dtype != dtype:
                self._broken(f"{name} are {field.dtype} where {jnp.dtype(dtype)} is expected")
            if len(field.shape) != 2 or field.shape != found.ids.shape:
                self._broken(
                    f"{name} have shape {field.shape} and ids {found.ids.shape} where both should have [groups, slots]"
                )
        if found.ids.shape[0] != self.groups:
            self._broken(
                f"{found.ids.shape[0]} groups are drawn for a batch of {BATCH_SIZE} where {self.groups} are expected; "
                f"say how many it should have with num_groups= (None: one group per example)"
            )

    def _broken(self, what: str) -> None:
        raise LawBroken(f"law 2 (ids) of {name_of(self.sampler)}: {what}.\nWhat to look at: what sample returns.")

    def on(self, classes: Classes) -> "Bench":
        """The same sampler, compiled as it is, on other classes of the same shapes."""
        other = self.at(classes, None)
        other._check_types()
        return other

    def at(self, classes: Classes, state: Any) -> "Bench":
        """``on`` other classes in a given state (None: that of ``init``)."""
        other = self._copy()
        other._place(classes, state)
        return other

    def at_query(self, query: Query) -> "Bench":
        """The same sampler, classes and state, asked for another batch."""
        other = self._copy()
        other.query = query
        return other

    def _copy(self) -> "Bench":
        """The same in all but what has been drawn."""
        other = copy.copy(self)
        other.__dict__.pop("drawn", None)
        return other

    def updated(self) -> "Bench":
        """After a step that changed two rows; two more are fillers, which hold NaN.

        A support that follows the rows may be that of the old ones until the next refresh.
        """
        row_ids = jnp.array([0, 2, self.classes.num_classes, self.classes.num_classes + 1], jnp.int32)
        rows = -self.classes.vectors[row_ids[:2]]
        rows = jnp.concatenate([rows, jnp.full_like(rows, jnp.nan)])
        classes = dataclasses.replace(self.classes, vectors=self.classes.vectors.at[row_ids[:2]].set(rows[:2]))
        query = dataclasses.replace(self.query, classes=classes)
        after = self.at(classes, self.update(self.state, jax.random.key(1), query, row_ids, rows))
        after.certain, after.support = after.support & self.support, after.support | self.support
        after.required, after.counted = after.counted & self.counted, after.counted | self.counted
        return after

    def refreshed(self, num_valid: int | None = None) -> "Bench":
        """After an update, and a refresh on other rows, biases and counts; perhaps with another number of classes."""
        classes = self.classes_of(int(self.classes.num_valid) if num_valid is None else num_valid, seed=1)
        return self.at(classes, self.refresh(self.updated().state, jax.random.key(2), classes))

    def many(self, seed: int) -> Candidates:
        """Candidates with a leading axis of ``DRAWS`` draws."""
        return self._many(self.state, jax.random.key(seed), self.query)

    @functools.cached_property
    def drawn(self) -> Candidates:
        """What most laws look at: the draws of one seed."""
        return self.many(13)

    def one(self, seed: int) -> Candidates:
        """One draw. It may round differently from many draws at a time, and counts must agree to the last bit."""
        return self._one(self.state, jax.random.key(seed), self.query)

    def stated(self, found: Candidates) -> tuple[np.ndarray, np.ndarray]:
        """Log expected counts after one draw, of its ids [groups, slots] and of all classes [groups, num_classes]."""
        of_ids, of_all = self._stated(self.state, found, self.query)
        for name, counts, width in (("the ids drawn", of_ids, found.ids.shape[1]), ("all ids", of_all, None)):
            shape = (self.groups, self.classes.num_classes if width is None else width)
            if counts.shape != shape or counts.dtype != jnp.float32:
                raise LawBroken(
                    f"log_expected_count of {name} is {counts.dtype}{list(counts.shape)} where "
                    f"float32{list(shape)} is expected"
                )
        return np.asarray(of_ids), np.asarray(of_all)

    def mean_stated(self, found: Candidates) -> np.ndarray:
        """Expected counts of all classes [groups, num_classes], on average over draws of ``many``."""
        return np.asarray(self._mean_stated(self.state, found, self.query))


def name_of(sampler: Sampler) -> str:
    """How messages call a sampler: by the function that made its ``sample``."""
    function: Callable[..., Any] = sampler.sample
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__name__).replace(".<locals>.", " > ")
