"""`candax export`: the class vectors of a run, for other programs.

    candax export runs/train --out runs/train/export

A finished run of a recipe gives the weights that were measured, and the names of its classes; any other run of
``cx.training.fit`` those of its newest or best checkpoint.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console

from candax.recipes.common import finished
from candax.recipes.predict.loading import TASKS, load_task
from candax.training.metrics_log import write_atomically
from candax.training.saved import export, write_classes

_HEAD = "head"


@dataclasses.dataclass(frozen=True)
class Export:
    """Writes class vectors, biases, ids and names of a run as .safetensors, .npy and .json, and an index for faiss."""

    run: tyro.conf.Positional[Path]
    """Folder of a finished run, of one of its models, or of a run of fit that holds checkpoints/; or a model's file."""
    out: Path = Path("export")
    """Folder to write to."""
    best: bool = False
    """Take the checkpoint of the best validation, of a run that has one."""


def export_command(settings: Export) -> None:
    """Writes the files, and prints their names."""
    run = settings.run
    models = (run, run / finished.FILE, *run.glob(f"models/*/{finished.FILE}"))
    has_model = any(path.name == finished.FILE and path.is_file() for path in models)
    written = _of_model(settings) if has_model and not settings.best else export(run, settings.out, best=settings.best)
    for path in written:
        Console().print(f"{path}  {path.stat().st_size:,} bytes", soft_wrap=True, markup=False)


def _of_model(settings: Export) -> list[Path]:
    task, found = load_task(settings.run)
    classes = (found.fitted_ if task == "extreme" else found).model.head.whole()
    number = int(classes.num_valid)
    parts = {"class_vectors": np.asarray(classes.vectors)[:number]}
    if classes.biases is not None:
        parts["class_biases"] = np.asarray(classes.biases)[:number]
    written = write_classes(settings.out, _HEAD, parts, normalized=classes.normalized)
    names, path = getattr(found, TASKS[task].names), settings.out / f"{_HEAD}.class_names.json"
    # As an array, texts would all take the memory of the longest.
    as_list = names.tolist() if isinstance(names, np.ndarray) else list(names)
    write_atomically(path, json.dumps(as_list, ensure_ascii=False) + "\n")
    return [*written, path]
