"""What ``test_launch`` runs in every process: class-parallel training, a checkpoint, an evaluation."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from scipy.sparse import csr_array

import candax as cx
from tests.training import problems


def main(folder: str) -> None:
    built = cx.training.build_class_parallel(
        problems.model() if folder.endswith("given") else problems.model,
        sampler=cx.samplers.unigram(4),
        loss=cx.losses.css,
        optimizer=optax.sgd(0.3),
        num_shards=4,
    )
    state, values = built.init(0), []
    for i in range(3):
        state, loss = built.step(state, problems.Source()[0, i])
        values.append(float(loss))
    with cx.training.Checkpoints(folder, identity={}) as checkpoints:
        checkpoints.save(state, {})
    with cx.training.Checkpoints(folder, identity={}) as checkpoints:
        state = checkpoints.restore(built.init(1))
    state, loss = built.step(state, problems.Source()[0, 3])
    values.append(float(loss))
    labels = csr_array(np.eye(8, problems.NUM_CLASSES))
    metrics = cx.training.evaluate(
        lambda batch: built.embed(state, batch)[:8],
        built.classes(state),
        [(problems.Source()[0, 4], slice(0, 8))],
        labels,
        np.ones(problems.NUM_CLASSES),
        8,
    )
    about = {"processes": jax.process_count(), "devices": len(jax.devices()), "losses": values}
    # A file each: lines that two processes print may end up in one another.
    found = Path(f"{folder}.{jax.process_index()}.json")
    found.write_text(json.dumps(about | {"log_likelihood": metrics["log_likelihood"]}), encoding="utf-8")


cx.training.connect()  # before the first computation
main(sys.argv[1])
