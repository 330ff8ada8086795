"""`candax diagnose`: how far sampled losses are from the full softmax on a trained model, by number of samples.

    candax diagnose runs/train                     (a run of candax train, its newest checkpoint)
    candax diagnose model.npz                      (class_vectors, embeddings, labels from anywhere)

What it should show: the error of log Z of `css` falls with the root of the number of samples, and is smaller the closer
the sampler is to the model's own distribution; `subset_softmax`, which corrects for nothing, keeps its bias.
"""

import dataclasses
import zipfile
from pathlib import Path
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console

from candax import data, diagnostics
from candax.base import Classes
from candax.data.progress import progress_bar
from candax.recipes import common
from candax.recipes.common.catalog import LOSSES, SAMPLERS, LossName, SamplerName
from candax.recipes.common.results import write_json
from candax.recipes.extreme.embedding import embedded
from candax.recipes.extreme.train import restore


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnose(common.Settings):
    """Measures sampler x loss pairs on a model; prints tables, writes results.json and diagnostics.png."""

    source: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of a run of `candax train`, measured on test examples, or an .npz file with class_vectors [classes, dim],
    embeddings [N, dim] and labels [N] or [N, T] (-1 pads), and, if wanted, class_biases and counts (label frequencies)
    [classes]."""
    samplers: tuple[SamplerName, ...] = ("uniform", "log_uniform", "unigram")
    """Samplers. For top_k the number of samples is k; in_batch ignores it, as it takes the labels of the batch.
    learned_unigram and learned_clusters have not learned from any labels yet."""
    losses: tuple[LossName, ...] = ("css", "sampled_softmax", "subset_softmax")
    """Losses; of those without a likelihood only the gradients are measured."""
    num_sampled: tuple[common.Count, ...] = (16, 64, 256, 1024)
    """Numbers of samples."""
    num_draws: int = 64
    """Draws of candidates for each pair and number of samples; even, 4 or more."""
    num_examples: common.Count = 256
    """Examples with labels, chosen at random; they share candidates as a training batch does."""
    top_k: common.Count = 10
    """Report the share of this many best classes that the candidates contain."""
    out: common.Out = Path("runs/diagnose")
    """Folder for results.json and diagnostics.png."""
    QUICK: ClassVar = {"num_sampled": (16,), "num_draws": 4, "num_examples": 16}

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        for name in ("samplers", "losses", "num_sampled"):
            self.expect(bool(getattr(self, name)), f"something after --{name.replace('_', '-')}", name)
        # Of halves that each have a variance: said before the run is restored.
        even = self.num_draws >= 4 and self.num_draws % 2 == 0
        self.expect(even, "an even number of draws, 4 or more", "num_draws")


def diagnose(settings: Diagnose) -> diagnostics.Diagnostics:
    """Runs the diagnosis and writes its files."""
    settings = settings.ready()
    console = Console()
    with common.new_folder(settings.out) as out:
        common.folder_for(settings.name, out)
        classes, embeddings, labels = (_from_file if settings.source.is_file() else _from_run)(settings)
        # What a sampler lacks, such as label frequencies, is said now and not when others have been measured.
        for name in settings.samplers:
            jax.eval_shape(SAMPLERS[name](settings.num_sampled[0]).init, jax.random.key(settings.seed), classes)
    methods = diagnostics.pairs(
        {name: SAMPLERS[name] for name in dict.fromkeys(settings.samplers)},
        {name: LOSSES[name] for name in dict.fromkeys(settings.losses)},
    )
    total = len(methods) * len(settings.num_sampled) * settings.num_draws
    with progress_bar("diagnosing", total) as done:
        result = diagnostics.diagnose(
            classes,
            embeddings,
            labels,
            methods,
            num_sampled=settings.num_sampled,
            num_draws=settings.num_draws,
            key=jax.random.key(settings.seed),
            top_k=min(settings.top_k, int(classes.num_valid)),
            progress=lambda draws, _: done(draws),
        )
    console.print(diagnostics.table(result))
    about = {
        "study": settings.name,
        "source": str(settings.source),
        "seed": settings.seed,
        **{name: getattr(result, name) for name in ("num_classes", "num_examples", "num_draws", "top_k")},
        "rows": result.to_rows(),
    }
    write_json(out / "results.json", about)
    diagnostics.draw(result, out / "diagnostics.png")
    console.print(f"wrote {out / 'results.json'} and {out / 'diagnostics.png'}", soft_wrap=True, markup=False)
    return result


def _choose(settings: Diagnose, with_labels: np.ndarray) -> np.ndarray:
    """Rows of some examples that have labels."""
    if not len(with_labels):
        raise ValueError(f"expected examples with labels, but {settings.source} has none to measure on.")
    chosen = np.random.default_rng(settings.seed).permutation(len(with_labels))[: settings.num_examples]
    return with_labels[np.sort(chosen)]


def _from_run(settings: Diagnose) -> tuple[Classes, np.ndarray, np.ndarray]:
    run = restore(settings.source)
    test = run.dataset.test
    rows = _choose(settings, np.flatnonzero(np.diff(test.labels.indptr)))
    examples = data.Examples(test.features[rows], test.labels[rows])
    # For the labels alone: features are read without a limit.
    ((batch, _),) = data.evaluation_batches(examples, len(rows), max_features=1)
    return run.model.head.classes(), embedded(run.model, examples.features), batch.labels


def _from_file(settings: Diagnose) -> tuple[Classes, np.ndarray, np.ndarray]:
    path = settings.source
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:  # TypeError: of a single array
        raise ValueError(
            f"expected the folder of a run, or an .npz file of plain arrays (numpy.savez); {path} is neither."
        ) from error
    missing = [name for name in ("class_vectors", "embeddings", "labels") if name not in arrays]
    if missing:
        raise ValueError(f"expected the array {missing[0]} in {path}, got {', '.join(arrays) or 'none'}.")
    for name in arrays.keys() & {"class_vectors", "embeddings", "class_biases", "counts"}:
        if arrays[name].dtype.kind not in "fiu":
            raise ValueError(f"expected numbers in {name} of {path}, got {arrays[name].dtype}.")
        arrays[name] = arrays[name].astype(np.float32)
    vectors, embeddings, labels = arrays["class_vectors"], arrays["embeddings"], arrays["labels"]
    labels = labels[:, None] if labels.ndim == 1 else labels
    if vectors.ndim != 2 or embeddings.ndim != 2 or labels.ndim != 2 or len(embeddings) != len(labels):
        raise ValueError(
            f"expected class_vectors [classes, dim], embeddings [N, dim] and labels [N] or [N, T] in {path}, got "
            f"shapes {vectors.shape}, {embeddings.shape} and {arrays['labels'].shape}."
        )
    if labels.dtype.kind not in "iu":
        raise ValueError(f"expected integer labels in {path}, got {labels.dtype}.")
    if strange := labels[(labels < -1) | (labels >= len(vectors))].tolist():
        raise ValueError(
            f"expected labels from 0 to {len(vectors) - 1}, or -1 where there is none, in {path}, got {strange[0]}."
        )
    for name in ("class_biases", "counts"):
        if name in arrays and arrays[name].shape != (len(vectors),):
            raise ValueError(f"expected {name} of shape ({len(vectors)},), one per class, got {arrays[name].shape}.")
    if "counts" in arrays and not (np.isfinite(arrays["counts"]) & (arrays["counts"] >= 0)).all():
        raise ValueError(f"expected finite counts of 0 or more in {path}, got others.")
    biases, counts = (jnp.asarray(arrays[name]) if name in arrays else None for name in ("class_biases", "counts"))
    classes = Classes(jnp.asarray(vectors), biases, counts, jnp.int32(len(vectors)))
    rows = _choose(settings, np.flatnonzero((labels >= 0).any(axis=1)))
    return classes, embeddings[rows], labels[rows]
