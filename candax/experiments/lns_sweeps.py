"""Locality sensitive Negative Sampling, tables 4 to 7: what the number of candidates, of tables and of hashes does.

    candax experiment lns-sweeps
    candax experiment lns-sweeps --config acl-authors --dataset FOLDER

Table 4: candidates as a share of all classes, .005 and .05, for LSH Embedding, LSH Label and sampled softmax
(log-uniform), and for sampled softmax also .2. Tables 5 and 6: number of tables L. Table 7: number of hash functions K
per table. One setting changes at a time, the others are those of the configuration. Every run is trained alike.

The paper's claims: LSH works with .005 of the classes where sampled softmax fails, which needs .2 (table 4); quality
grows with L and saturates, and time grows in proportion to L (tables 5 and 6); there is a best K (table 7).

Expected P@1 on python-stdlib (10 to 20 minutes on 2 cores; full softmax .408):

* Candidates, .005 and .05 of all classes: LSH Embedding .027, .350; LSH Label .165, .337; near the logit .350, .380;
  sampled softmax .388, .409, and .415 with .2. It does not need many here, as labels are skewed.
* Tables, 4 to 64: LSH Embedding .294, .354, .375, .366, .347; near the logit .352, .366, .391, .388, .396.
* Hash functions, 4 to 10: LSH Embedding .310, .297, .375, .342; near the logit .344 and .377 with 4 and 6.

Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), appendix C.
"""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Literal

from candax import data
from candax.experiments.lns_configurations import OnDataset
from candax.experiments.lns_methods import METHODS, MethodName
from candax.recipes import common

SweepName = Literal["sparsity", "num_tables", "num_hashes"]


@dataclasses.dataclass(frozen=True)
class Sweeps(OnDataset):
    """Trains with one setting after another; prints a table, writes results.json and sweeps.png."""

    tables: tuple[SweepName, ...] = ("sparsity", "num_tables", "num_hashes")
    """What to sweep: tables 4, 5 and 6, 7."""
    methods: tuple[MethodName, ...] = ("lsh_embedding", "lsh_label", "lsh_logit")
    """LSH methods of table 4; the first and the last one are those of the other tables."""
    sparsity: tuple[common.Share, ...] = (0.005, 0.05)
    """Candidates as a share of all classes."""
    static_sparsity: tuple[common.Share, ...] = (0.005, 0.05, 0.2)
    """The same for sampled softmax."""
    num_tables: tuple[common.Count, ...] = (4, 8, 16, 32, 64)
    """L."""
    num_hashes: tuple[common.Count, ...] = (4, 6, 8, 10)
    """K."""
    out: common.Out = Path("runs/lns_sweeps")
    """Folder for results.json and the picture."""

    QUICK: ClassVar = {
        "config": "toy",
        "epochs": 2,
        "methods": ("lsh_logit",),
        "sparsity": (0.1, 0.5),
        "static_sparsity": (0.5,),
        "num_tables": (2,),
        "num_hashes": (3,),
    }


COLUMNS = (
    common.Column("sweep", "sweep"),
    common.Column("method", "method"),
    common.Column("value", "value", "g"),
    common.Column("candidates", "num_sampled", ","),
    common.Column("P@1", "p_at_1", ".3f"),
    common.Column("P@5", "p_at_5", ".3f"),
    common.Column("ms/step", "ms_per_step", ".1f"),
)
AXES: dict[SweepName, dict[str, str]] = {
    "sparsity": {"xlabel": "candidates / classes", "title": "paper: LSH needs few, sampled softmax many"},
    "num_tables": {"xlabel": "tables L", "title": "paper: grows with L and saturates"},
    "num_hashes": {"xlabel": "hash functions K per table", "title": "paper: there is a best K"},
}


def sweeps(settings: Sweeps) -> list[common.Row]:
    """Runs the study; a row for each trained model."""
    settings = settings.ready()
    dataset = settings.load()
    methods = [_method(settings, dataset, *plan) for plan in _plans(settings)]
    panels = [_panel(sweep) for sweep in settings.tables]
    title = f"{dataset.name}: {dataset.num_classes:,} classes"
    return common.run(common.Study(title, methods, COLUMNS, panels, picture="sweeps.png"), settings)


def _panel(sweep: SweepName) -> common.Panel:
    axes = {"ylabel": "precision at 1 on test data", "xscale": "linear" if sweep == "num_hashes" else "log"}
    return common.Panel(common.sweep("value", "p_at_1", where=lambda row: row["sweep"] == sweep), axes | AXES[sweep])


def _plans(settings: Sweeps) -> list[tuple[SweepName, MethodName, float]]:
    """Sweep, method, value."""
    ends = dict.fromkeys((settings.methods[0], settings.methods[-1]))
    plans: list[tuple[SweepName, MethodName, float]] = []
    plans += [("sparsity", method, share) for method in settings.methods for share in settings.sparsity]
    plans += [("sparsity", "sampled_softmax", share) for share in settings.static_sparsity]
    for method in ends:
        plans += [("num_tables", method, number) for number in settings.num_tables]
        plans += [("num_hashes", method, number) for number in settings.num_hashes]
    return [plan for plan in plans if plan[0] in settings.tables]


def _method(
    settings: Sweeps, dataset: data.Dataset, sweep: SweepName, method: MethodName, value: float
) -> common.Method:
    changes: dict[str, Any] = {sweep: value}
    configuration = dataclasses.replace(settings.configuration, **changes)
    number = configuration.num_sampled(dataset.num_classes)
    labels = {"sweep": sweep, "method": method, "value": value, "num_sampled": number}
    training = settings.training(dataset, curve_examples=None)
    return common.Method(labels, training.by(*METHODS[method](configuration, number), f"{method}, {sweep} {value:g}"))
