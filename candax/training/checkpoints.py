"""Checkpoints of a run, by orbax: written atomically, limited in number, restored whole or refused with a reason."""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from jaxtyping import PyTree

from candax.checks import checked
from candax.files import naming, removed, replacing
from candax.models.head import Head
from candax.rows.differentiate import name_of
from candax.rows.slots import slot_paths
from candax.training.agreement import alone
from candax.training.digests import digests

# Orbax reports every save and restore on the absl logger, in the middle of progress bars.
logging.getLogger("absl").setLevel(logging.ERROR)

# The version of what is written below; checkpoints of another version are refused.
VERSION = 1
# What reading missing or damaged files raises; other errors (no memory, no permission) say nothing of the checkpoint.
_DAMAGED = (ValueError, KeyError, TypeError, EOFError, FileNotFoundError)
_MODEL, _OPTIMIZER = "model", "optimizer"
# Types of arrays that orbax cannot write.
_NOT_WRITTEN = ("uint2", "uint4", "float8_e4m3")
# Orbax numbers the saves of a process, and two that begin in two threads at once would take each other's number.
_BEGINNING = threading.Lock()


class About(NamedTuple):
    """What a checkpoint says of itself.

    Attributes:
        step: of training.
        position: of the batches, see ``candax.training.feed``.
        validation: the best value so far and how many measurements ago it was, see ``Validation``.
        unrecorded: what the steps since the last record have found, see ``Means``, and the seconds of training.
        heads: the model's heads by path: their sizes, and the names of their arrays in the checkpoint.
    """

    step: int
    position: dict[str, Any]
    validation: dict[str, Any]
    unrecorded: dict[str, Any]
    heads: dict[str, Any]


def _told(step: int, about: dict[str, Any]) -> About:
    return About(step, about["position"], about["validation"], about.get("unrecorded", {}), about["heads"])


class Checkpoints:
    """The checkpoints of one run, in ``folder/name``; a context manager.

    Args:
        folder: of the run; created where missing.
        identity: what must be the same for a run to go on: JSON values by name (seed, batch size, data set ...). None:
            any run is accepted.
        keep: how many checkpoints are kept, the newest.
        name: of the folder within ``folder``.
        reads: whether only to read; a run may write here meanwhile.

    Raises:
        ValueError: if ``keep`` is not positive; if another run writes here at this moment.
    """

    @checked
    def __init__(
        self,
        folder: str | Path,
        *,
        identity: dict[str, Any] | None,
        keep: int = 3,
        name: str = "checkpoints",
        reads: bool = False,
    ) -> None:
        if keep < 1:
            raise ValueError(f"expected to keep at least 1 checkpoint, got keep={keep}.")
        self.folder = Path(folder).absolute()
        self._identity = None if identity is None else _as_json(identity)
        # A reader must not clear away what a run is writing at this moment.
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if reads else keep, cleanup_tmp_directories=not reads, create=not reads, read_only=reads
        )
        with contextlib.ExitStack() as stack:
            if not reads:
                stack.enter_context(alone(self.folder / f".{name}.lock"))
            self._manager = ocp.CheckpointManager(self.folder / name, options=options)
            self._locked = stack.pop_all()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *error: object) -> None:
        with self._locked, self._writing():
            self._manager.close()

    @property
    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint, None where there is none."""
        return self._manager.latest_step()

    def save(
        self,
        step: int,
        model: nnx.Module,
        optimizer: Any,
        position: dict[str, Any],
        validation: dict[str, Any] | None = None,
        unrecorded: dict[str, Any] | None = None,
    ) -> None:
        """Writes a checkpoint; it appears under its name only once it is complete."""
        arrays, _ = _named(model, optimizer)
        about = {
            "version": VERSION,
            "identity": self._identity,
            "position": position,
            "validation": validation or {},
            "unrecorded": unrecorded or {},
            "heads": _heads(model),
            "arrays": _shapes(arrays),
            "digests": digests(arrays),
        }
        args = ocp.args.Composite(state=ocp.args.PyTreeSave(arrays), about=ocp.args.JsonSave(about))
        with self._writing(), _BEGINNING:
            self._manager.save(step, args=args, force=True)

    def restate(self, validation: dict[str, Any]) -> None:
        """Changes what the newest checkpoint says of the best; its arrays stay, and at no moment is it away."""
        step, about = self._about()
        if jax.process_index() == 0:
            with replacing(self._path(step) / "about" / "metadata") as file:
                file.write(json.dumps({**about, "validation": validation}).encode())

    def check(self, model: nnx.Module, optimizer: Any) -> None:
        """Raises ValueError for arrays that no checkpoint can hold."""
        for name, array in _named(model, optimizer)[0].items():
            if not array.size or array.dtype.name in _NOT_WRITTEN:
                raise ValueError(
                    f"expected arrays that a checkpoint can hold, with elements and not of {', '.join(_NOT_WRITTEN)}, "
                    f"got {name} of {array.dtype.name}{list(array.shape)}. Give it another type, leave it out where it "
                    "is empty, or train without a folder."
                )

    def wait(self) -> None:
        """Waits until all that was saved is on disk."""
        with self._writing():
            self._manager.wait_until_finished()

    def forget(self, which: Callable[[int], bool]) -> None:
        """Deletes the checkpoints of some steps."""
        with self._writing():
            for step in filter(which, self._manager.all_steps()):
                self._manager.delete(step)

    def about(self) -> About:
        """What the newest checkpoint says of itself.

        Raises:
            ValueError: where there is none, or one that this version of candax cannot read or that is of another run.
        """
        step, about = self._about()
        return _told(step, about)

    def restore(self, model: nnx.Module, optimizer: Any, step: int | None = None) -> About:
        """Puts the newest checkpoint, or that of a step, into a model and its optimizer, on the devices these use.

        Where the optimizer is None, its arrays in the checkpoint are not read, nor the slots that an exact one has put
        beside the model's tables: what is saved is settled.

        Raises:
            ValueError: where there is no checkpoint, or one that is damaged, of another model or of another run.
        """
        step, about = self._about(step)
        arrays, put = _named(model, optimizer)
        wanted = _shapes(arrays)
        found = about["arrays"]
        if optimizer is None:
            slots = tuple(f"{_MODEL}/{'/'.join(map(str, path))}/" for path in slot_paths(model))
            found = {
                name: shape
                for name, shape in found.items()
                if name in wanted or (name.startswith(f"{_MODEL}/") and not name.startswith(slots))
            }
        self._check_arrays(found, wanted)
        # Where rows are padded for shards, arrays of other numbers of classes may be alike.
        self._check_arrays(_sizes(about["heads"]), _sizes(_heads(model)))
        put(self._read(step, about, jax.tree.map(ocp.utils.to_shape_dtype_struct, arrays)))
        return _told(step, about)

    def read(self, names: Sequence[str | None], step: int | None = None) -> dict[str, np.ndarray]:
        """Arrays of the newest checkpoint, or of that of a step, by name and without a model: whole in each process."""
        step, about = self._about(step)
        of_processes = [jax.local_devices(process)[0] for process in range(jax.process_count())]
        mesh = jax.sharding.Mesh(np.array(of_processes), ("processes",))
        here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        abstract = {
            name: jax.ShapeDtypeStruct(*about["arrays"][name], sharding=here) for name in names if name is not None
        }
        return {name: np.asarray(array) for name, array in self._read(step, about, abstract).items()}

    def _read(self, step: int, about: dict[str, Any], abstract: dict[str, Any]) -> dict[str, jax.Array]:
        # Arrays that are not asked for are not read.
        args = ocp.args.PyTreeRestore(
            abstract,
            restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
            partial_restore=len(abstract) < len(about["arrays"]),
        )
        try:
            with naming(self._path(step)):
                found = self._manager.restore(step, args=ocp.args.Composite(state=args))["state"]
        except _DAMAGED as error:
            raise ValueError(self._damaged(step, error)) from error
        wanted = about.get("digests", {})  # which older checkpoints do not have
        changed = [name for name, digest in digests(found).items() if digest != wanted.get(name, digest)]
        if changed:
            raise ValueError(self._damaged(step, ValueError(f"the digest of {changed[0]} does not match")))
        return found

    def _about(self, step: int | None = None) -> tuple[int, dict[str, Any]]:
        step = self.latest_step if step is None else step
        if step is None or step not in self._manager.all_steps():
            raise ValueError(f"expected a checkpoint in {self._manager.directory}, found none. Train first.")
        try:
            with naming(self._path(step)):
                about = self._manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
        except _DAMAGED as error:
            raise ValueError(self._damaged(step, error)) from error
        version = about.get("version", 0) if isinstance(about, dict) else 0
        if version != VERSION:
            advice = "a newer candax: update candax" if version > VERSION else "an older candax: train anew"
            raise ValueError(
                f"expected checkpoints of version {VERSION} in {self._manager.directory}, got one of version "
                f"{version}, written by {advice}."
            )
        self._check_identity(about["identity"])
        return step, about

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        folder = Path(self._manager.directory)
        try:
            with naming(folder):
                yield
        except Exception as error:
            # TensorStore makes the folder again, without what it had put there.
            if not isinstance(error, FileNotFoundError) and not str(error).startswith("NOT_FOUND"):
                raise
            raise removed(folder) from error

    def _path(self, step: int) -> Path:
        return Path(self._manager.directory) / str(step)

    def _damaged(self, step: int, error: Exception) -> str:
        reason = str(error).strip().split("\n")[0][:300]
        return (
            f"the checkpoint {self._path(step)} cannot be read ({type(error).__name__}: {reason}). "
            "Delete this folder to go on from the checkpoint before it."
        )

    def _check_identity(self, found: dict[str, Any] | None) -> None:
        if self._identity is None or found is None:
            return
        if different := _different(found, self._identity):
            listing = ", ".join(f"{n} was {found.get(n)!r} and is {self._identity.get(n)!r}" for n in different)
            raise ValueError(
                f"{self.folder} holds a run with other settings: {listing}. "
                "Continue it with its own settings or choose another folder."
            )

    def _check_arrays(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        if different := _different(found, wanted):
            shown = [
                f"{name} was {_describe(found.get(name))} and is {_describe(wanted.get(name))}" for name in different
            ]
            raise ValueError(
                f"{self.folder} holds a run of another model or optimizer: {', '.join(shown[:4])}"
                f"{f', and {len(shown) - 4} more' if len(shown) > 4 else ''}. Make the model as it was, with the same "
                "number of classes, settings of its heads and num_shards (on a mesh the size of its axis, unless it "
                "was given), or choose another folder."
            )


def _as_json(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity as it is read from a checkpoint; ValueError for anything but JSON values."""
    found = {}
    for name, value in identity.items():
        try:
            found[name] = json.loads(json.dumps(value, default=np.generic.item))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"expected identity[{name!r}] to be made of numbers, texts, lists and dicts, as JSON is, got "
                f"{type(value).__name__} ({error}): give its name, say."
            ) from None
    return found


def _different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names under which two dicts have different JSON values; NaN is equal to NaN."""

    def equal(a: Any, b: Any) -> bool:
        return bool(a == b) or json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)

    return sorted(name for name in {*one, *other} if not equal(one.get(name), other.get(name)))


def _named(model: nnx.Module, optimizer: Any) -> tuple[dict[str, jax.Array], Any]:
    """All arrays by name (random keys as their data), and a function that writes such arrays into both nodes."""
    nodes = {_MODEL: model} if optimizer is None else {_MODEL: model, _OPTIMIZER: optimizer}
    state = nnx.state(nodes)
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    # Some may be of Python's numbers.
    arrays = jax.Array | jax.ShapeDtypeStruct
    leaves = [(path, leaf if isinstance(leaf, arrays) else jnp.asarray(leaf)) for path, leaf in leaves]
    names = [_name(path) for path, _ in leaves]
    assert len(set(names)) == len(names)

    def put(arrays: dict[str, jax.Array]) -> None:
        new = [_key_like(leaf, arrays[name]) for name, (_, leaf) in zip(names, leaves, strict=True)]
        nnx.update(nodes, jax.tree.unflatten(structure, new))

    return {name: _plain(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}, put


def _name(path: Any) -> str:
    attribute = jax.tree_util.GetAttrKey("value")  # of each variable
    return jax.tree_util.keystr(tuple(key for key in path if key != attribute), simple=True, separator="/")


def _plain(leaf: Any) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf


def _key_like(leaf: Any, array: jax.Array) -> PyTree:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
    return array


def _shapes(arrays: dict[str, jax.Array]) -> dict[str, Any]:
    return {name: [list(array.shape), str(array.dtype)] for name, array in arrays.items()}


def _sizes(heads: dict[str, Any]) -> dict[str, Any]:
    return {f"{of} of {name}": head[of] for name, head in heads.items() for of in ("num_classes", "normalized")}


def _describe(found: Any) -> str:
    if found is None:
        return "nothing"
    return f"{found[1]}{found[0]}" if isinstance(found, list) else str(found)


def _heads(model: nnx.Module) -> dict[str, Any]:
    """For each head: its number of classes, whether it is normalized, and the names of its arrays in a checkpoint."""
    variables = dict(nnx.iter_graph(model))
    # The paths under which ``nnx.state`` has them.
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(model))]
    names = {id(variables[path]): f"{_MODEL}/{'/'.join(map(str, path))}" for path in paths}
    return {
        name_of(path) or "head": {
            "num_classes": head.num_classes,
            "normalized": head.normalized,
            "vectors": names.get(id(head.vectors)),
            "biases": None if head.biases is None else names[id(head.biases)],
        }
        for path, head in nnx.iter_graph(model)
        if isinstance(head, Head)
    }
