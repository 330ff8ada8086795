"""Batches of any origin on their way to the device, with the position from which training goes on after each."""

import base64
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from candax.checks import check_32_bits


@runtime_checkable
class BatchSource(Protocol):
    """Batches as a pure function of (seed, epoch, index), such as ``candax.data.Batches``."""

    @property
    def batches_per_epoch(self) -> int:
        """How many batches an epoch has."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """What the sequence of batches depends on, as JSON values."""
        ...

    def __getitem__(self, position: tuple[int, int]) -> Any:
        """The batch at (epoch, index)."""
        ...


class Fed(NamedTuple):
    """A batch and its place.

    Attributes:
        batch: as the iterable gave it, or after ``on_host`` with arrays as its leaves.
        epoch: the epoch that it belongs to, from 0.
        at: its number within the epoch, from 0.
        last: whether it is the last one of its epoch.
        state: of the iterable after this batch, as JSON values; None where the iterable has none.
    """

    batch: Any
    epoch: int
    at: int
    last: bool
    state: Any

    @property
    def name(self) -> str:
        """The batch's place, for messages."""
        return f"batch {self.at} of epoch {self.epoch}"

    @property
    def position(self) -> dict[str, Any]:
        """Where training goes on after this batch; "over": that is at the end of its epoch."""
        # A state that was taken after the last batch leads to the end of this epoch, not to the start of the next.
        after = self.last and self.state is None
        epoch, index = (self.epoch + 1, 0) if after else (self.epoch, self.at + 1)
        position = {"epoch": epoch, "index": index, "state": self.state}
        return position | ({"over": True} if self.last and not after else {})


class Feed:
    """The batches of all epochs, from any position that can be returned to.

    Args:
        batches: a ``BatchSource``, or any iterable of batches: a list, a grain or a torch loader, a generator. It is
            iterated anew for each epoch. Or a function that makes an iterable for each epoch. The position is known
            where it is a ``BatchSource`` or a list, where its iterator has ``get_state`` and ``set_state`` (grain), or
            where it has ``state_dict`` and ``load_state_dict`` (torchdata).
        num_epochs: how many epochs; None: no end, but only once through an iterator that cannot be restarted.
        positions: whether to ask the iterable for its position after each batch.
    """

    def __init__(
        self,
        batches: Iterable[Any] | BatchSource | Callable[[], Iterable[Any]],
        num_epochs: int | None,
        positions: bool = True,
    ) -> None:
        self.batches: Any = batches
        self._makes = callable(batches) and not isinstance(batches, Iterable | BatchSource)
        self.num_epochs = num_epochs
        self._positions = positions

    @property
    def identity(self) -> dict[str, Any]:
        """What the batches depend on, where they are a ``BatchSource``, which states it."""
        return self.batches.identity if isinstance(self.batches, BatchSource) else {}

    def returns_to(self, position: dict[str, Any]) -> bool:
        """Whether such batches can be had from a position on, or else only by throwing away those before it."""
        return isinstance(self.batches, BatchSource | Sequence) or position["state"] is not None

    def start(self, step: int, position: dict[str, Any] | None, skip: bool) -> Iterator[Fed]:
        """The batches from the start, or, after ``step`` steps, from a saved position on.

        Raises:
            ValueError: where the iterable cannot be brought to that position.
        """
        if isinstance(self.batches, BatchSource):
            return self._of_source(self.batches, position or {"epoch": 0, "index": 0})
        if position is None or step == 0:
            return self._of_iterable(0, 0, None)
        if isinstance(self.batches, Sequence):  # the same batches in each epoch
            if len(self.batches) < position["index"]:
                raise ValueError(
                    f"expected the batches that this run was stopped in, at least {position['index']}, got "
                    f"{len(self.batches)}."
                )
            rest = itertools.islice(self.batches, position["index"], None)
            return self._of_iterable(position["epoch"], position["index"], None, rest)
        known = position["state"] is not None
        if known and (_has_state_dict(self.batches) or hasattr(self._iterator(), "set_state")):
            return self._of_iterable(position["epoch"], position["index"], position["state"])
        if not skip:
            raise ValueError(
                f"this run stopped after {step} steps, and its batches ({type(self.batches).__name__}) have no "
                "position to go on from: give fit an iterable whose iterator has get_state and set_state (grain), one "
                "with state_dict and load_state_dict (torchdata), or one with batches_per_epoch and [epoch, index]. "
                "Or pass skip=True: the first batches are then taken and thrown away, which is right where the "
                "iterable gives the same batches in the same order each time."
            )
        return itertools.islice(self._of_iterable(0, 0, None), step, None)

    def _of_source(self, source: BatchSource, position: dict[str, Any]) -> Iterator[Fed]:
        epoch, index = position["epoch"], position["index"]
        number = source.batches_per_epoch
        while self.num_epochs is None or epoch < self.num_epochs:
            if number < 1:
                raise ValueError(
                    f"expected batches to train on, got {type(source).__name__} with {number} batches_per_epoch: give "
                    "it more examples, or smaller batches."
                )
            for at in range(index, number):
                yield Fed(source[epoch, at], epoch, at, at == number - 1, None)
            epoch, index = epoch + 1, 0

    def _of_iterable(self, epoch: int, index: int, state: Any, rest: Iterator[Any] | None = None) -> Iterator[Fed]:
        loader = self.batches
        while self.num_epochs is None or epoch < self.num_epochs:
            if state is not None and hasattr(loader, "load_state_dict"):
                loader.load_state_dict(_decoded(state))
            iterator, rest = self._iterator() if rest is None else rest, None
            if state is not None and hasattr(iterator, "set_state"):
                iterator.set_state(_decoded(state))
            resumed, state = state is not None or index > 0, None
            before: Fed | None = None
            for batch in iterator:
                if before is not None:
                    yield before
                before, index = self._fed(batch, epoch, index, iterator), index + 1
            if before is not None:
                yield before._replace(last=True)
            elif not resumed:
                if epoch:  # a generator is used up after its only pass
                    return
                raise ValueError(
                    f"expected batches to train on, got {type(loader).__name__} without any: is it an iterator that "
                    "has been used already?"
                )
            epoch, index = epoch + 1, 0
            if iterator is loader:
                return

    def _iterator(self) -> Iterator[Any]:
        return iter(self.batches() if self._makes else self.batches)

    def _fed(self, batch: Any, epoch: int, at: int, iterator: Any) -> Fed:
        state, loader = None, self.batches
        if self._positions and hasattr(iterator, "get_state") and hasattr(iterator, "set_state"):
            state = _encoded(iterator.get_state())
        elif self._positions and _has_state_dict(loader):
            state = _encoded(loader.state_dict())
        return Fed(batch, epoch, at, False, state)


def _has_state_dict(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _encoded(state: Any) -> Any:
    """A state as JSON values: nothing is ever pickled. All but None, numbers and texts becomes ``[kind, content]``."""
    if state is None or isinstance(state, bool | int | float | str):
        return state
    if isinstance(state, bytes):
        return ["bytes", base64.b64encode(state).decode()]
    if isinstance(state, list | tuple):
        return ["list" if isinstance(state, list) else "tuple", [_encoded(part) for part in state]]
    if isinstance(state, Mapping):
        return ["dict", [[_encoded(key), _encoded(value)] for key, value in state.items()]]
    if hasattr(state, "__array__"):
        array = np.asarray(state)
        kind = "tensor" if type(state).__module__.startswith("torch") else "array"
        return [kind, [base64.b64encode(array.tobytes()).decode(), str(array.dtype), list(array.shape)]]
    raise ValueError(
        f"expected the position of the batches to be made of numbers, texts, bytes, arrays, lists and dicts, got "
        f"{type(state).__name__} in it. Without a folder none is asked for."
    )


def _decoded(state: Any) -> Any:
    if not isinstance(state, list):
        return state
    kind, content = state
    if kind == "bytes":
        return base64.b64decode(content)
    if kind in ("list", "tuple"):
        parts = [_decoded(part) for part in content]
        return parts if kind == "list" else tuple(parts)
    if kind == "dict":
        return {_decoded(key): _decoded(value) for key, value in content}
    array = np.frombuffer(base64.b64decode(content[0]), content[1]).reshape(content[2]).copy()
    if kind == "tensor":
        import torch

        return torch.from_numpy(array)
    return array


def on_host(batch: Any, what: str) -> Any:
    """A batch with arrays of numbers as its leaves: JAX arrays stay, others (torch tensors, numbers) become NumPy's.

    Raises:
        ValueError: for leaves that are not arrays of numbers, and integers beyond 32 bits, which JAX would wrap.
    """
    is_data = dataclasses.is_dataclass(batch) and not isinstance(batch, type)
    if is_data and len(leaves := jax.tree.leaves(batch)) == 1 and leaves[0] is batch:
        # A dataclass that JAX does not know yet: all its fields are taken for arrays, but those that it sets itself.
        given = [field.name for field in dataclasses.fields(batch) if field.init]
        jax.tree_util.register_dataclass(type(batch), given, [])

    def array(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return leaf
        array = np.asarray(leaf)
        at = f"{what}{jax.tree_util.keystr(path)}"
        if array.dtype.kind not in "biuf" and array.dtype.name not in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            raise ValueError(
                f"{at}: expected an array of numbers, got {type(leaf).__name__} of dtype {array.dtype}: leave it out "
                "of the batch, or turn it into ids."
            )
        check_32_bits(array, f"{at}: ")
        return array

    return jax.tree_util.tree_map_with_path(array, batch)


def size_of(batch: Any) -> int:
    """The number of examples in a batch: the first dimension of its labels or, without labels, of its first array."""
    labels = field(batch, "labels")
    leaves = [leaf for leaf in jax.tree.leaves(batch if labels is None else labels) if np.ndim(leaf)]
    return int(leaves[0].shape[0]) if leaves else 1


def field(batch: Any, name: str) -> Any:
    """A field of a batch by name, None where it has none."""
    return batch.get(name) if isinstance(batch, dict) else getattr(batch, name, None)


def has_some(batch: Any, name: str) -> bool:
    """Whether a batch has a field with anything in it."""
    found = field(batch, name)
    return found is not None and np.size(found) > 0
