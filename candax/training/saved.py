"""Reads what a run has saved: its model and optimizer, or its class vectors, as files for other programs."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from candax.checks import checked
from candax.files import replacing
from candax.training.checkpoints import Checkpoints
from candax.training.optimizer import Optimizer


class Loaded(NamedTuple):
    """A run as it was saved.

    Attributes:
        model: with its trained values, in training mode: call ``model.eval()`` before you use it.
        optimizer: None where ``make`` made none.
        step: steps done.
        position: of the batches: epoch, index within it, and the state of the iterable where it has one.
    """

    model: nnx.Module
    optimizer: Optimizer | None
    step: int
    position: dict[str, Any]


@checked
def load(
    folder: str | Path, make: Callable[[], nnx.Module | tuple[nnx.Module, Optimizer]], *, best: bool = False
) -> Loaded:
    """The newest checkpoint of a run of ``fit``, or the best one.

    A checkpoint holds arrays and no code: ``make`` makes the model as the run did, and the saved values are put in. The
    model is in training mode, with dropout: call ``model.eval()`` before you use it.

    Args:
        folder: the one that ``fit`` was given.
        make: ``() -> (model, optimizer)``, or ``() -> model`` where the optimizer is not wanted.
        best: take the checkpoint of the best validation, with ``Validation(best=)``.

    Returns:
        ``Loaded``.

    Raises:
        ValueError: where there is no checkpoint, or no best one, or one that is damaged, of another model or of another
            version.

    Example:
        >>> import tempfile, numpy as np, optax, candax as cx
        >>> def make():
        ...     head = cx.Head(50, 4, sampler=cx.samplers.uniform(8), rngs=nnx.Rngs(0))
        ...     return head, cx.Optimizer(head, optax.sgd(0.1))
        >>> folder, batches = tempfile.mkdtemp(), [{"h": np.ones((2, 4)), "labels": np.arange(2)}]
        >>> def loss_fn(head, batch):
        ...     return head.loss(batch["h"], batch["labels"])
        >>> _ = cx.training.fit(*make(), batches, loss_fn=loss_fn, folder=folder, progress=False)
        >>> cx.training.load(folder, make).step
        1
    """
    if isinstance(make, nnx.Module):
        raise ValueError(f"expected make, a function that makes the model, got a {type(make).__name__}: lambda: model.")
    made = make()
    model, optimizer = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, nnx.Module) or not isinstance(optimizer, Optimizer | None):
        raise ValueError(f"expected make() to return a model, or a model and a candax.Optimizer, got {made!r}.")
    step = _best_step(folder) if best else None
    with _saved(folder, best) as checkpoints:
        about = checkpoints.restore(model, optimizer, step)
    return Loaded(model, optimizer, about.step, about.position)


@checked
def export(folder: str | Path, out: str | Path, *, best: bool = False) -> list[Path]:
    """Writes class vectors, biases and ids of a run for other programs; it does not need the code of the model.

    Each head gets a ``.safetensors`` file with ``class_vectors``, ``class_biases`` (where it has biases) and
    ``class_ids``, the same as ``.npy`` files, and where faiss is installed an exact index of inner products
    ``.faiss``: with biases, its vectors have one coordinate more, where a query must have 1; for a normalised head,
    class vectors there have length 1. They are the weights that training goes on from: a recipe whose optimizer keeps
    averages measures those, which are in ``model.safetensors`` and which `candax export` writes. Where several
    processes train together, all must call this; the first writes.

    Args:
        folder: of a run of ``fit``.
        out: folder to write to; created where missing.
        best: take the checkpoint of the best validation.

    Returns:
        The files.

    Raises:
        ValueError: where there is no checkpoint, or no best one, or no head with a table in it.
    """
    step = _best_step(folder) if best else None
    with _saved(folder, best) as checkpoints:
        heads = {name: head for name, head in checkpoints.about().heads.items() if head["vectors"] is not None}
        if not heads:
            raise ValueError(f"expected a run of a model with a candax.Head, got none in {folder}.")
        arrays = checkpoints.read([head[part] for head in heads.values() for part in ("vectors", "biases")], step)
    written = []
    for name, head in heads.items():
        number = head["num_classes"]
        parts = {"class_vectors": arrays[head["vectors"]][:number]}
        if head["biases"] is not None:
            parts["class_biases"] = arrays[head["biases"]][:number]
        written += write_classes(out, name, parts, normalized=head["normalized"])
    return written


def write_classes(out: str | Path, name: str, parts: dict[str, np.ndarray], *, normalized: bool) -> list[Path]:
    """Writes the files of one head, see ``export``.

    Args:
        out: folder to write to; created where missing.
        name: of the head, with which the files' names begin.
        parts: ``class_vectors``, and ``class_biases`` where there are some.
        normalized: whether the head scores by cosines.
    """
    from safetensors.numpy import save

    if jax.process_index() == 0:
        try:
            Path(out).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"expected out to be a folder that can be made, got {out}: {error.strerror}.") from error
    written = []

    def write(name: str, content: bytes | np.ndarray) -> None:
        written.append(Path(out) / name)
        if jax.process_index():
            return
        with replacing(Path(out) / name) as file:
            if isinstance(content, np.ndarray):
                np.save(file, content)
            else:
                file.write(content)

    ids = {"class_ids": np.arange(len(parts["class_vectors"]), dtype=np.int64)}
    parts = {part: _wide(array) for part, array in parts.items()} | ids
    write(f"{name}.safetensors", save(parts))
    for part, array in parts.items():
        write(f"{name}.{part}.npy", array)
    if importlib.util.find_spec("faiss") is not None:
        write(f"{name}.faiss", _faiss_index(parts, normalized))
    # What an export before has left must not be taken for a part of this one.
    for other in ("class_biases.npy", "class_names.json", "faiss"):
        if not jax.process_index() and (path := Path(out) / f"{name}.{other}") not in written:
            path.unlink(missing_ok=True)
    return written


def _best_step(folder: str | Path) -> int:
    """The best step as the newest checkpoint states it; a run that was killed may have begun to save a later one."""
    with _saved(folder, best=False) as checkpoints:
        step = checkpoints.about().validation.get("step")
    _check_has(folder, "best")
    if step is None:
        raise ValueError(
            f"expected a run with a best measurement, got none so far in {folder}: its measurements were infinite, or "
            "of another name or mode. Leave best out to take the newest checkpoint."
        )
    return step


def _wide(array: np.ndarray) -> np.ndarray:
    """The array, as float32 where its type is one that NumPy's file format does not know."""
    return array.astype(np.float32) if array.dtype.kind not in "biuf" else array


def _faiss_index(parts: dict[str, np.ndarray], normalized: bool) -> bytes:
    import faiss

    vectors = parts["class_vectors"].astype(np.float32)
    if normalized:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    if "class_biases" in parts:
        vectors = np.concatenate([vectors, parts["class_biases"].astype(np.float32)[:, None]], axis=1)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors))
    return faiss.serialize_index(index).tobytes()


def _saved(folder: str | Path, best: bool) -> Checkpoints:
    name = "best" if best else "checkpoints"
    _check_has(folder, name)
    return Checkpoints(folder, identity=None, name=name, reads=True)


def _check_has(folder: str | Path, name: str) -> None:
    if not (Path(folder) / name).is_dir():
        of_recipe = any(Path(folder).glob("models/*/model.safetensors"))
        raise ValueError(
            f"expected a folder that fit has written, with {name}/ in it, got {folder}."
            f"{' Was the run given Validation(best=...)?' if name == 'best' else ''}"
            + (" `candax export` reads the models of a recipe's finished run." if of_recipe else "")
        )
