"""The seams of candax: what a sampler sees and returns, and what a loss sees.

Read this file first. A **sampler** proposes a small candidate set for a batch and says how often it expected to
propose each class. A **loss** turns the logits of the true and of the sampled classes into one number per example.
A **head** owns the class vectors and scores only the rows that are needed. Because the three meet only here, any
sampler goes with any loss.

Vocabulary (one word for one thing, everywhere in the library):

* ``num_classes``: the size of the output space; ``B`` examples, ``T`` true classes per example, ``dim`` coordinates.
* *group*: a run of ``B / G`` consecutive examples that share one candidate set of ``S`` slots. ``G = 1`` is one shared
  set, ``G = B`` one set per example; everything between is the same code.
* *expected count*: E[how often class c stands in the candidate set]. With replacement that is ``S q(c)``, without
  replacement or with independent inclusion the inclusion probability. Importance weights and Horvitz-Thompson weights
  are both ``exp(-log_expected_count)``.
* *hit*: a sampled class that is one of the example's labels ("accidental hit").
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from candax.checks import check_positive, checked

T = TypeVar("T")


def static_field(**kwargs: Any) -> Any:
    """A dataclass field that is part of the pytree's structure instead of one of its leaves."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static_field))
def pytree(cls: type[T]) -> type[T]:
    """Makes ``cls`` a frozen dataclass whose fields are pytree children (or structure, see ``static_field``).

    Unlike ``jax.tree_util.register_dataclass``, rebuilding does not call ``__init__``: JAX fills pytrees with objects
    that are no arrays (``None``, ``ShapeDtypeStruct``, booleans), which run-time type checks would refuse.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    static = [f.name for f in fields if f.metadata.get("static")]
    dynamic = [f.name for f in fields if not f.metadata.get("static")]

    def flatten_with_keys(node: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children = [(jax.tree_util.GetAttrKey(name), getattr(node, name)) for name in dynamic]
        return children, tuple(getattr(node, name) for name in static)

    def unflatten(aux: tuple[Any, ...], children: Any) -> Any:
        node = object.__new__(cls)
        for name, value in (*zip(static, aux, strict=True), *zip(dynamic, children, strict=True)):
            object.__setattr__(node, name, value)
        return node

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten)
    return cls


def _is_known(number: Any) -> bool:
    """Whether a number can be looked at: not while it is traced, and not where other processes hold it."""
    if isinstance(number, jax.core.Tracer) or not isinstance(number, jax.Array | np.ndarray | np.integer | int):
        return False
    return not isinstance(number, jax.Array) or number.is_fully_addressable


@checked
@pytree
class Classes:
    """The output layer as the head scores it (or one device's shard of it).

    ``vectors`` [num_classes, dim] and ``biases`` [num_classes] are its rows: arrays, or views of tables inside
    ``candax.rows.value_and_grad``. ``counts`` are label frequencies where known. Ids >= ``num_valid`` (default: none)
    are padding rows: never sampled, scored or predicted. ``total_count`` is the sum of the counts of all classes, and
    ``total_valid`` their number, where these are one shard's. Where the head is ``normalized`` its logits are cosines,
    and ``vectors`` are of any length nevertheless: what ranks or scores them uses ``candax.cosines.as_scored``.
    """

    vectors: Any
    biases: Any = None
    counts: Float[Array, "num_classes"] | None = None
    num_valid: Int[Array, ""] = None  # type: ignore[assignment]  # set below
    normalized: bool = static_field(default=False)
    total_count: Float[Array, ""] | None = None
    total_valid: Int[Array, ""] | None = None

    def __post_init__(self) -> None:
        for name in ("vectors", "biases"):
            if isinstance(getattr(self, name), np.ndarray | list):
                object.__setattr__(self, name, jnp.asarray(getattr(self, name)))
        shape = getattr(self.vectors, "shape", (0, 0))
        of_biases = getattr(self.biases, "shape", shape[:1])
        if len(shape) != 2 or of_biases != shape[:1]:
            raise ValueError(
                f"expected class vectors of shape [num_classes, dim] and one bias per class, got {list(shape)} and "
                f"{list(of_biases)}."
            )
        of_counts = getattr(self.counts, "shape", shape[:1])
        if of_counts != shape[:1]:
            raise ValueError(f"expected counts of shape [{shape[0]}], one per class, got {list(of_counts)}.")
        if self.num_valid is None:
            object.__setattr__(self, "num_valid", jnp.int32(self.vectors.shape[0]))
        elif _is_known(self.num_valid) and not 0 <= int(self.num_valid) <= shape[0]:
            raise ValueError(f"expected num_valid of 0 ... {shape[0]}, the number of rows, got {int(self.num_valid)}.")

    @property
    def num_classes(self) -> int:
        """Rows of the table, padding included (a static number)."""
        return self.vectors.shape[0]


@pytree
class Query:
    """All that a sampler may look at; gradients are stopped before it is built.

    ``labels`` pad with -1 and are distinct within an example. Adaptive samplers may gather rows of ``classes``; static
    ones do not touch it. With a normalised head ``embeddings`` are of length 1. ``elsewhere`` says which labels belong
    to the classes of other shards, and so are -1 here.
    """

    embeddings: Float[Array, "B dim"]
    labels: Int[Array, "B T"]
    classes: Classes
    elsewhere: Bool[Array, "B T"] | None = None


@pytree
class Candidates:
    """A candidate set for every group.

    ``mask`` is False on padding slots, whose ids are in range and whose counts are finite but mean nothing. ``draw``
    is opaque: what this draw must remember to state the count of an id that it did not return.
    """

    ids: Int[Array, "G S"]
    log_expected_count: Float[Array, "G S"]
    mask: Bool[Array, "G S"]
    draw: PyTree = ()


@pytree
class SampledLogits:
    """All that a loss sees: logits of true and of sampled classes with their log expected counts.

    ``hits[b, s]`` says that sampled slot s is one of the labels of example b; the head computes it, and where a loss
    does not use it the compiler removes it. ``num_classes`` counts the valid classes over all devices.

    Where examples have more labels than there are slots for, ``true`` are a random subset of them, ``num_labels`` says
    how many there are, and ``more_hits`` which sampled slots are one of the others: no negatives, but a part of the
    normaliser that samples stand for.
    """

    true: Float[Array, "B T"]
    true_log_expected_count: Float[Array, "B T"]
    true_mask: Bool[Array, "B T"]
    sampled: Float[Array, "B S"]
    sampled_log_expected_count: Float[Array, "B S"]
    sampled_mask: Bool[Array, "B S"]
    hits: Bool[Array, "B S"]
    num_classes: int = static_field()
    num_labels: Int[Array, " B"] | None = None
    more_hits: Bool[Array, "B S"] | None = None


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is true of a sampler, for losses, combinators and tests to rely on.

    Attributes:
        covers_all: every valid class can be drawn.
        draw_independent: expected counts do not depend on the draw.
        with_replacement: a class can stand in one candidate set more than once.
        exact: the reported counts satisfy the one law; False: they are approximations and the docstring says why.
        law_over: what the one law's expectation runs over: "draw" (the key), "index" (key and index construction) or
            "batch" (the examples).
        alike: the slots of a candidate set are drawn independently from one distribution, so that the first few of
            them are a smaller set of the same sampler.
        of_batch: the one set of all examples follows their labels or embeddings. Beside candidates that are themselves
            labels of the batch (``law_over`` "batch") counts then no longer add.
        counts_labels: labels have count 1 though they need not be drawn, as a head scores them anyway. Such counts
            cannot be added to those of other candidates.
    """

    covers_all: bool
    draw_independent: bool
    with_replacement: bool
    exact: bool = True
    law_over: Literal["draw", "index", "batch"] = "draw"
    alike: bool = False
    of_batch: bool = False
    counts_labels: bool = False


State: TypeAlias = PyTree
"""What a sampler keeps between draws: a pytree of arrays, of its own making."""

KeyArray = Key[Array, ""]
"""One key of ``jax.random.key``."""


class Sampler(NamedTuple):
    """A sampler: pure functions closed over static hyperparameters, never over arrays (those live in the state).

    Attributes:
        init: ``(key, classes) -> state``.
        sample: ``(state, key, query) -> Candidates``. The one law: for every class c in the support,
            E[sum_s mask_s 1{ids_s = c} exp(-log_expected_count_s)] = 1.
        log_expected_count: ``(state, candidates, ids[G, n], query) -> [G, n]``: the same number for any ids, meant for
            the true classes; -inf where a class cannot be drawn. Ids must be in range.
        update: ``(state, key, query, row_ids, rows) -> state``, after a step: ``rows`` are the new class vectors of the
            sorted, unique ``row_ids``; ids >= num_classes are fillers to be ignored. ``no_update`` for static samplers.
        refresh: ``(state, key, classes) -> state``: rebuilds the state from all classes.
        schedule: ``(step) -> bool``, called by the training loop before each step: whether to refresh.
        facts: see ``Facts``.
        share: ``(number) -> Sampler``: the sampler of one of that many shards of the classes, which draws its part of
            the samples; None for one that cannot be divided. See ``candax.samplers.sharded``.
    """

    init: Callable[[KeyArray, Classes], State]
    sample: Callable[[State, KeyArray, Query], Candidates]
    log_expected_count: Callable[[State, Candidates, Array, Query], Array]
    update: Callable[[State, KeyArray, Query, Array, Array], State]
    refresh: Callable[[State, KeyArray, Classes], State]
    schedule: Callable[[int], bool]
    facts: Facts
    share: Callable[[int], "Sampler"] | None = None

    def __repr__(self) -> str:
        return _made_by(self.share) or f"Sampler({getattr(self.sample, '__qualname__', type(self.sample).__name__)})"


class Retriever(NamedTuple):
    """Finds the classes of largest logit: an index over the classes, exact or approximate, as pure functions.

    ``candax.samplers.retrieved`` makes a sampler of it, ``save_index`` a file, ``candax.testing.check_retriever``
    checks one of your own.

    Attributes:
        build: ``(key, classes) -> state``.
        search: ``(state, query, k) -> (scores [B, k], ids [B, k])``: the k best that are found for each example,
            distinct, with the head's logits (of ``query.classes``, as they are now) in falling order. Slots without a
            class have score -inf and id 0.
        follow: ``(state, key, row_ids, rows) -> state``, after a step: ``rows`` are the new class vectors of the
            sorted, unique ``row_ids``; ids >= num_classes are fillers to be ignored. ``no_follow`` for those that
            change at a refresh only.
        refresh: ``(state, key, classes) -> state``: the index of the present classes, in the memory of the old one.
        kind: the name that files of its state bear.
        settings: what it was made with, by name: ``load_index`` makes it again.
        share: as for a ``Sampler``.
        shortlist: ``(state, query, groups, k, number) -> (scores [G, n], ids [G, n])``, for ``grouped``, which needs
            sets and no order: about k of the best classes of each example, or, if that is cheaper, the about ``number``
            best of each group of consecutive examples. Ids may repeat; scores may be estimates, and rank the ids of a
            group. Slots without a class have score -inf. None: ``search`` finds them.
    """

    build: Callable[[KeyArray, Classes], State]
    search: Callable[[State, Query, int], tuple[Array, Array]]
    follow: Callable[[State, KeyArray, Array, Array], State]
    refresh: Callable[[State, KeyArray, Classes], State]
    kind: str
    settings: Mapping[str, Any] = {}
    share: Callable[[int], "Retriever"] | None = None
    shortlist: Callable[[State, Query, int, int, int], tuple[Array, Array]] | None = None

    def __repr__(self) -> str:
        return _made_by(self.share) or f"Retriever({self.kind})"

    def find(
        self, state: State, embeddings: Float[Array, "B dim"], classes: Classes, k: int
    ) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
        """``search`` for embeddings without labels, of any length.

        Raises:
            ValueError: for a k below 1, or embeddings that are not as wide as class vectors.
        """
        check_positive("k", k)
        if np.ndim(embeddings) != 2 or embeddings.shape[1] != classes.vectors.shape[1]:
            raise ValueError(
                f"expected embeddings [B, {classes.vectors.shape[1]}], as wide as class vectors, got "
                f"{list(np.shape(embeddings))}."
            )
        if not embeddings.shape[0]:
            return jnp.zeros((0, k), jnp.float32), jnp.zeros((0, k), jnp.int32)
        unknown = jnp.full((embeddings.shape[0], 1), -1, jnp.int32)
        return self.search(state, Query(embeddings, unknown, classes), k)


def _made_by(share: Any) -> str | None:
    """The call that made a sampler or a retriever of this library, as text."""
    return getattr(share, "made_by", None)


def no_follow(state: State, key: KeyArray, row_ids: Array, rows: Array) -> State:
    """The ``follow`` of a retriever whose state changes at a refresh only."""
    del key, row_ids, rows
    return state


def no_update(state: State, key: KeyArray, query: Query, row_ids: Array, rows: Array) -> State:
    """The update of a sampler whose state does not follow the class vectors."""
    del key, query, row_ids, rows
    return state


def never(step: int) -> bool:
    """The schedule of a sampler that needs no refresh."""
    del step
    return False


Loss = Callable[[SampledLogits], Float[Array, " B"]]
"""A loss maps SampledLogits (and keyword-only hyperparameters) to one unreduced number per example."""

Margin = Callable[[SampledLogits], SampledLogits]
"""A margin maps SampledLogits of cosines to SampledLogits of scaled logits."""


def labels_mask(labels: Int[Array, "..."]) -> Bool[Array, "..."]:
    """True where a label is real: labels pad with -1."""
    return jnp.asarray(labels) >= 0
