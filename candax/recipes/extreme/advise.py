"""`candax advise`: which sampler, loss and optimizer suit your own labels, by timings on this machine.

    candax advise counts.txt --dim 128 --batch-size 256   (label counts, one per line)
    candax advise train.txt                               (a training file of the Extreme Classification Repository)

It takes some seconds to compile and time a few steps, prints what was weighed and why, and code to paste.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from candax import diagnostics
from candax.data import label_counts_of
from candax.data.label_counts import KindOfCounts
from candax.recipes import common
from candax.recipes.common.results import write_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advise(common.Settings):
    """Advice from label counts: sampler, candidates, loss, optimizer and devices, with the reason for each."""

    source: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """A file of label counts, one per line; or of labels, one example per line (without users or other columns); or a
    training file in the text format of the Extreme Classification Repository."""
    kind: KindOfCounts = "auto"
    """What the lines of the file are: auto takes a single number per line for a count, even if it is a label."""
    dim: common.Count = 128
    """Coordinates of a class vector."""
    batch_size: common.Count = 256
    """Examples per step."""
    rest_ms: common.NotNegative | None = None
    """Milliseconds that the rest of the model takes per step; by default as long as an output layer with 1,024
    candidates."""
    memory_gb: common.Positive | None = None
    """Gigabytes of memory of one device; by default what the device reports, or else the machine's memory."""
    seconds: common.Positive = 8.0
    """Seconds to spend on measurements, compiling not included."""
    out: common.Out = Path("runs/advise")
    """Folder for results.json."""
    QUICK: ClassVar = {"seconds": 0.5, "dim": 8}


def advise(settings: Advise) -> diagnostics.Advice:
    """Measures, prints the advice and writes its file."""
    settings = settings.ready()
    with common.new_folder(settings.out) as out:
        common.folder_for(settings.name, out)
        found = label_counts_of(settings.source, settings.kind)
    advice = diagnostics.advise(
        found.counts,
        dim=settings.dim,
        batch_size=settings.batch_size,
        labels_per_example=found.labels_per_example,
        memory_bytes=None if settings.memory_gb is None else max(1, int(1e9 * settings.memory_gb)),
        rest_ms=settings.rest_ms,
        seconds=settings.seconds,
    )
    console = Console()
    console.print(
        f"{len(found.counts):,} classes, {found.labels_per_example:.2f} labels per example; a step is one of the "
        "output layer alone, with Adam."
    )
    console.print(advice.table())
    chosen = {
        "sampler": advice.sampler,
        "num_sampled": f"{advice.num_sampled:,}",
        "loss": advice.loss,
        "optimizer": advice.optimizer,
        "groups": advice.num_groups,
        "devices": advice.num_devices,
    }
    for name, value in chosen.items():
        console.print(escape(f"{name}: {value}: {advice.reasons[name]}"), soft_wrap=True, highlight=False)
    for line in advice.unsure:
        console.print(escape(f"unsure: {line}"), soft_wrap=True, highlight=False)
    console.print("\n" + escape(advice.snippet), soft_wrap=True, highlight=False)
    about = {
        "study": settings.name,
        "source": str(settings.source),
        **{name: getattr(settings, name) for name in ("dim", "batch_size")},
        **chosen,
        "reasons": dict(advice.reasons),
        "unsure": list(advice.unsure),
        "options": [dataclasses.asdict(option) for option in advice.options],
    }
    write_json(out / "results.json", about)
    console.print(f"wrote {out / 'results.json'}", soft_wrap=True, markup=False)
    return advice
