"""What a finished training leaves for later use: one file of weights, names and settings, read without the data.

The file is ``model.safetensors`` beside the checkpoints: the weights that were measured (averages, where these are),
without the optimizer and the sampler. It is written at the end, in one step: if it exists, the training has finished.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from candax.files import read_arrays, write_arrays
from candax.recipes.common.results import MODELS

FILE = "model.safetensors"
_KIND = "candax model"
_VERSION = 1
_WEIGHT, _NAMES, _EXTRA = "weight/", "names/", "extra/"
M = TypeVar("M", bound=nnx.Module)


class Finished(NamedTuple):
    """A finished training, as it was saved.

    Attributes:
        path: of the file.
        task: what it was trained for: "extreme", "sequences" ...
        about: settings and sizes, JSON values.
        weights: arrays by their paths in the model.
        names: lists of names (texts or whole numbers): "classes", "relations" ...
        extra: further arrays that predictions need.
    """

    path: Path
    task: str
    about: dict[str, Any]
    weights: dict[str, np.ndarray]
    names: dict[str, list[Any]]
    extra: dict[str, np.ndarray]

    @property
    def options(self) -> dict[str, Any]:
        """The settings of the model and its training, without the sampler where all classes are candidates."""
        options = dict(self.about["options"])
        if options.get("loss", "") is None:
            options.pop("sampler", None)  # of other methods of the command
        return options


def into(model: M, weights: Mapping[str, np.ndarray], where: str) -> M:
    """Writes weights into a model that was made with the same settings, and returns it in evaluation mode.

    Args:
        model: to write into.
        weights: of ``weights_of``.
        where: where they come from, for error messages.

    Raises:
        ValueError: if the model's weights have other names or shapes.
    """
    params = nnx.to_flat_state(nnx.state(model, nnx.Param))
    wanted = {_name(path): variable for path, variable in params}
    shapes = {name: tuple(variable.get_value().shape) for name, variable in wanted.items()}
    found = {name: array.shape for name, array in weights.items()}
    if shapes != found:
        differ = sorted(name for name in {*shapes, *found} if shapes.get(name) != found.get(name))
        raise ValueError(f"{where}: expected the weights of its settings, got others for {', '.join(differ)}.")
    for name, variable in wanted.items():
        variable.set_value(jnp.asarray(weights[name]))
    nnx.update(model, nnx.from_flat_state(params))
    model.eval()
    return model


def weights_of(model: nnx.Module) -> dict[str, np.ndarray]:
    """The weights of a model by their paths."""
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {_name(path): np.asarray(variable.get_value()) for path, variable in flat}


def save(
    folder: Path,
    task: str,
    about: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    *,
    names: Mapping[str, Sequence[Any]],
    extra: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Writes the file; readers see all of it or none.

    Args:
        folder: of the run; created where missing.
        task: see ``Finished``.
        about: see ``Finished``.
        weights: of ``weights_of``.
        names: see ``Finished``.
        extra: see ``Finished``.

    Returns:
        The path of the file.

    Raises:
        ValueError: for names that are neither texts nor whole numbers.
        OSError: if it cannot be written.
    """
    for what, given in names.items():
        strange = [name for name in given if isinstance(name, bool) or not isinstance(name, str | int)]
        if strange:
            raise ValueError(
                f"expected names of {what} that are texts or whole numbers, to be saved; got {strange[0]!r}."
            )
    arrays = {_WEIGHT + name: array for name, array in weights.items()}
    # As JSON, since names may contain any character.
    arrays |= {_NAMES + what: np.frombuffer(json.dumps(list(of)).encode(), np.uint8) for what, of in names.items()}
    arrays |= {_EXTRA + name: array for name, array in (extra or {}).items()}
    if jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        write_arrays(folder / FILE, _KIND, {"version": _VERSION, "task": task, **about}, arrays)
    return folder / FILE


def read(path: Path) -> Finished:
    """Reads the file.

    Raises:
        ValueError: if it is of another kind, damaged, or of a newer version.
        OSError: if it cannot be read.
    """
    about, arrays = read_arrays(path, _KIND)
    version = about.pop("version", 0)
    if version != _VERSION:
        advice = "a newer candax: update candax" if version > _VERSION else "another candax: train anew"
        raise ValueError(f"{path}: expected a model of version {_VERSION}, got one of version {version}, of {advice}.")
    parts = {
        start: {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
        for start in (_WEIGHT, _NAMES, _EXTRA)
    }
    names = {what: json.loads(array.tobytes()) for what, array in parts[_NAMES].items()}
    return Finished(path, about.pop("task"), about, parts[_WEIGHT], names, parts[_EXTRA])


def find(run: Path, commands: str) -> Path:
    """The model file of a run: in its folder, or in that of the only method and seed in its ``models/``.

    Of a method and seed that were trained again with other settings or data it is the one that the results name, or
    else the last one.

    Args:
        run: folder, or the file itself.
        commands: the commands that write such runs, for error messages.

    Raises:
        ValueError: if there is none, or more than one.
    """
    if run.is_file():
        return run
    if (run / FILE).is_file():
        return run / FILE
    last, named = {}, _named_in_results(run)
    paths = sorted(run.glob(f"models/*/{FILE}"), key=lambda path: path.stat().st_mtime_ns)
    for path in [path for path in paths if path in named] or paths:
        last[path.parent.name.rpartition("-")[0] or path.parent.name] = path.parent
    found = sorted(last.values())
    if len(found) == 1:
        return found[0] / FILE
    if found:
        shown = ", ".join(str(path) for path in found[:5])
        raise ValueError(
            f"expected a run with one model, {run} has {len(found)}: give the folder of one, such as {shown}."
        )
    parts = ("checkpoints", "models", "study.json", "config.json", "settings.json")
    begun = [name for name in parts if (run / name).exists()]
    if begun == ["checkpoints"] and run.absolute().parent.name != "models":
        raise ValueError(
            f"expected the folder of a finished run of {commands}, got {run}, which candax.training.fit has written: "
            "candax.training.load reads it into a model, and candax.training.export writes its class vectors."
        )
    if begun:
        raise ValueError(
            f"expected a finished run, got {run}, whose training has not ended or whose models were removed: give the "
            "same command again, which goes on where it was."
        )
    raise ValueError(f"expected the folder of a finished run of {commands}, got {run}, which holds none.")


def _named_in_results(run: Path) -> set[Path]:
    for name in ("study.json", "results.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            rows = json.loads((run / name).read_text(encoding="utf-8"))["rows"]
            return {run / path for row in rows for path in row.get(MODELS, ())}
    return set()


def _name(path: Sequence[Any]) -> str:
    return "/".join(map(str, path))
