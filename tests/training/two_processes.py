"""What ``test_launch`` runs in every process: a model of one's own on a mesh of two axes, in ``fit``, twice."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

import candax as cx

NUM, DIM, BATCH = 60, 8, 16


class Model(nnx.Module):
    """One table for words in and words out."""

    def __init__(self, mesh):
        rngs = nnx.Rngs(0)
        self.words = cx.Embed(NUM, DIM, mesh=mesh, num_shards=4, rngs=rngs)
        self.layer = nnx.Linear(DIM, DIM, rngs=rngs)
        self.head = cx.Head(NUM, table=self.words, sampler=cx.samplers.unigram(16), counts=np.ones(NUM), rngs=rngs)

    def __call__(self, batch):
        return nnx.tanh(self.layer(self.words(batch["words"])))


class Source:
    """Each process has its part of each batch."""

    def __init__(self):
        self.batches_per_epoch = 10
        self.identity = {"seed": 0}

    def __getitem__(self, position):
        words, labels = np.random.default_rng(position).integers(0, NUM, (2, BATCH))
        each = BATCH // jax.process_count()
        mine = slice(jax.process_index() * each, (jax.process_index() + 1) * each)
        # Other processes have more labels to ignore: means over processes would be another loss.
        labels[: BATCH // 4] = -1
        return {"words": words[mine], "labels": labels[mine]}


def losses_with_more_labels(mesh):
    """27 pairs of each half of the batch, which are no multiple of its devices, and then none at all."""
    model = Model(mesh)
    model.head.use(model.head.sampler, cx.losses.one_vs_all)
    batch, each = Source()[0], BATCH // jax.process_count()
    first = jax.process_index() * each
    rows = [row - first for row in (5, 6, 7, 9, 10, 15) if first <= row < first + each]
    pairs = np.array([(row, (batch["labels"][row] + 1 + i) % NUM) for row in rows for i in range(9)])
    batches = [batch | {"more_labels": of.astype(np.int32)} for of in (pairs, pairs[:0])]
    found = cx.training.fit(model, cx.Optimizer(model, optax.sgd(0.1)), batches, log_every=1, progress=False)
    return [record["loss"] for record in found.records]


def main(folder: str) -> None:
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ("data", "classes"), axis_types=auto)
    losses = []

    def record(step, metrics):
        if "loss" in metrics:
            losses.append(metrics["loss"])

    def train(num_steps, batches=None):
        model = Model(mesh)
        optimizer = cx.Optimizer(model, optax.adagrad(0.3), clip_norm=1.0)
        return cx.training.fit(
            model,
            optimizer,
            Source() if batches is None else batches,
            num_steps=num_steps,
            folder=None if batches is not None else folder,
            callback=record,
            log_every=1,
            progress=False,
        )

    train(3)
    found = train(6)  # from the checkpoint
    more = losses_with_more_labels(mesh)
    metric = cx.training.mean_over(lambda model, batch: {"p": model.head.log_prob(model(batch), batch["labels"])})
    rng = np.random.default_rng(9)
    unseen = dict(zip(("words", "labels"), rng.integers(0, NUM, (2, BATCH)), strict=True))
    about = {"processes": jax.process_count(), "devices": len(jax.devices()), "losses": losses, "more": more}
    about |= metric(found.model, [unseen])
    if jax.process_count() > 1:
        try:
            train(None, [Source()[0, i] for i in range(3 + jax.process_index())])
        except ValueError as error:
            about["error"] = str(error)
    # A file each: lines that two processes print may end up in one another.
    Path(f"{folder}.{jax.process_index()}.json").write_text(json.dumps(about), encoding="utf-8")


cx.training.connect()  # before the first computation
main(sys.argv[1])
