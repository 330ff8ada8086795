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
  sampled softmax .388, .409, and .415 with .2. The last needs few here, as labels are skewed.
* Tables, 4 to 64: LSH Embedding .294, .354, .375, .366, .347; near the logit .352, .366, .391, .388, .396.
* Hash functions, 4 to 10: LSH Embedding .310, .297, .375, .342; near the logit .344 and .377 with 4 and 6.

Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), appendix C.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from candax.experiments.lns_configurations import METHODS, MethodName, OnDataset
from candax.recipes import common

SweepName = Literal["sparsity", "num_tables", "num_hashes"]
VALUES: dict[SweepName, tuple[float, ...]] = {
    "sparsity": (0.005, 0.05),
    "num_tables": (4, 8, 16, 32, 64),
    "num_hashes": (4, 6, 8, 10),
}
# Values for sampled softmax in the first sweep.
STATIC = (0.005, 0.05, 0.2)
TITLES: dict[SweepName, str] = {
    "sparsity": "candidates / classes\npaper: LSH needs few, sampled softmax many",
    "num_tables": "tables L\npaper: grows with L and saturates",
    "num_hashes": "hash functions K per table\npaper: there is a best K",
}


@dataclasses.dataclass(frozen=True)
class Sweeps(OnDataset):
    """Trains with one setting after another; prints a table, writes results.json and a picture."""

    tables: tuple[SweepName, ...] = tuple(VALUES)
    """What to sweep: sparsity (table 4), num_tables (tables 5 and 6), num_hashes (table 7)."""
    values: tuple[common.Positive, ...] = ()
    """Values for what is swept; none: the study's own."""
    methods: tuple[MethodName, ...] = ("lsh_embedding", "lsh_label", "lsh_logit")
    """LSH methods of table 4; the other tables have only the first and the last of them."""

    QUICK: ClassVar = {
        **OnDataset.QUICK,
        "epochs": 2.0,
        "tables": ("sparsity",),
        "values": (0.5, 1.0),
        "methods": ("lsh_logit",),
    }

    def check(self) -> None:
        """See ``Settings``; numbers of tables and of hash functions are whole."""
        super().check()
        some = bool(self.tables and self.methods)
        self.expect(some, "a word after --tables and one after --methods", "tables", "methods")
        whole = set(self.tables) <= {"sparsity"} or all(float(value).is_integer() for value in self.values)
        self.expect(whole, "whole numbers after --values for num_tables and num_hashes", "values", "tables")


@common.command
def sweeps(settings: Sweeps) -> common.Study:
    """Runs the study; a row for each trained model."""
    dataset = settings.load()
    training = settings.training(dataset, curve_examples=None)

    def method(sweep: SweepName, name: MethodName, value: float) -> common.Method:
        changes: dict[str, Any] = {sweep: value if sweep == "sparsity" else int(value)}
        configuration = dataclasses.replace(settings.configuration, **changes)
        number = settings.num_sampled(name, dataset, configuration)
        labels = {"sweep": sweep, "method": name, "value": value, "num_sampled": number}
        return common.Method(labels, training.by(*METHODS[name](configuration, number), f"{name}, {sweep} {value:g}"))

    def methods(sweep: SweepName) -> Iterator[common.Method]:
        ends = tuple(dict.fromkeys((settings.methods[0], settings.methods[-1])))
        for name in settings.methods if sweep == "sparsity" else ends:
            yield from (method(sweep, name, value) for value in settings.values or VALUES[sweep])
        if sweep == "sparsity":
            yield from (method(sweep, "sampled_softmax", value) for value in settings.values or STATIC)

    def panel(sweep: SweepName) -> common.Panel:
        scale = "linear" if sweep == "num_hashes" else "log"
        axes = {"title": TITLES[sweep], "xscale": scale, "ylabel": "precision at 1 on test data"}
        return common.Panel(common.sweep("value", "p_at_1", where=lambda row: row["sweep"] == sweep), axes)

    return common.Study(
        f"{dataset.name}: {dataset.num_classes:,} classes",
        [each for sweep in settings.tables for each in methods(sweep)],
        common.columns(sweep="", method="", value="g", num_sampled=",", p_at_1=".3f", p_at_5=".3f", ms_per_step=".1f"),
        [panel(sweep) for sweep in settings.tables],
        data=dataset.digest,
    )
