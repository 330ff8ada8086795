"""The methods that the ANN Softmax paper compares, each as a sampler and the form that it gives a loss on cosines.

``hm_num``, ``num_kept``, k and the period of refreshes follow from the number of classes as the paper says.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

from candax import losses, samplers
from candax.base import Loss, Sampler
from candax.recipes import common
from candax.recipes.faces import Faces, Problem, make_problem

MethodName = Literal["full_softmax", "ann_softmax", "knn_softmax", "hf_softmax", "lsh_softmax", "partial_fc"]
CodesName = Literal["int8", "mean", "rotated"]
LossName = Literal["softmax", "arcface", "cosface", "d_softmax"]

# Scale of cosines without a margin; the paper does not say it.
_SCALE = 16.0
# How many codes IVF-BQ reads for each class that it has to find, and the least that it reads.
_SEEN_PER_FOUND, _LEAST_SEEN = 20, 2500


@dataclasses.dataclass(frozen=True)
class Coded(common.Settings):
    """Settings of the studies whose index may have other codes than the paper's."""

    codes: CodesName = "int8"
    """Codes of the index IVF-BQ; mean: those of the paper, a tenth of which are read per query."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes that samplers are made for; all others are the defaults of ``samplers.ivf_bq``."""

    num_classes: int
    batch_size: int
    num_sampled: int  # per group: the paper's C_sub
    num_groups: int
    period: int  # steps between two builds of an index: T
    graph_period: int  # the same of a graph of neighbours, whose build takes much longer
    near: Literal["vector", "logit"] = "vector"
    num_centers: int | None = None  # None: the root of the number of classes, in the paper's range where it can be
    hm_num: int | None = None  # None: with "mean" codes a tenth of the classes, else what suffices for k
    num_kept: int | None = None  # None: a tenth of hm_num
    num_tables: int = 32  # of LSH
    codes: CodesName = "mean"

    @property
    def k(self) -> int:
        """Classes that an example retrieves: the paper's equation 8."""
        return samplers.classes_per_example(self.num_sampled, self.batch_size, self.num_groups)


def sizes_of(settings: Faces, codes: CodesName = "mean") -> Sizes:
    """The sizes of a study, with the paper's T of a fifth of an epoch."""
    per_epoch = settings.batches_per_epoch
    own = {name: getattr(settings, name) for name in ("num_classes", "batch_size", "num_sampled", "num_groups")}
    return Sizes(**own, period=max(1, per_epoch // 5), graph_period=per_epoch, codes=codes)


def classification(settings: Faces, tests: int = 4000) -> Problem:
    """The data of a study that measures only new samples of the training classes."""
    return make_problem(settings, tests=tests, pairs=20, probes=1, distractors=1)


def build_period(name: MethodName, sizes: Sizes) -> int:
    """Steps between two builds of a method's index or graph."""
    if name == "hf_softmax":  # every 1000 steps, or every epoch if that is less
        return min(1000, sizes.graph_period)
    return sizes.graph_period if name == "knn_softmax" else sizes.period


def _ivf(sizes: Sizes) -> Sampler:
    number = sizes.num_classes
    # The paper's section 3.2; with better codes fewer are enough (benchmarks/ann_step.py).
    enough = max(1, number // 10)
    if sizes.codes != "mean":
        enough = min(number, max(_LEAST_SEEN, _SEEN_PER_FOUND * sizes.k))
    hm_num = sizes.hm_num or enough
    kept = min(hm_num, sizes.num_kept or max(1, hm_num // 10))
    centers = max(1, min(max(64, math.isqrt(number)), 1024, number // 8))
    centers = centers if sizes.num_centers is None else sizes.num_centers
    options: dict[str, Any] = {"num_centers": centers, "hm_num": hm_num, "num_kept": kept}
    options |= {"near": sizes.near, "codes": sizes.codes}
    return samplers.every(samplers.ivf_bq(sizes.k, **options), build_period("ann_softmax", sizes))


def _lsh(sizes: Sizes) -> Sampler:
    # As many bits as it takes to number the classes; buckets follow the class vectors only when they are rebuilt.
    bits = max(1, round(math.log2(sizes.num_classes)))
    found = samplers.lsh_top_k(
        sizes.k,
        hash=samplers.simhash(),
        near=sizes.near,
        num_tables=sizes.num_tables,
        num_hashes=bits,
        capacity=16,
        update_every=None,
    )
    return samplers.every(found, build_period("lsh_softmax", sizes))


def _knn(sizes: Sizes) -> Sampler:
    # The paper has 6 neighbours with 10^3 classes, 12 with 10^6, 120 with 10^7 and 1200 with 10^8.
    k = max(6, round(1.2e-5 * sizes.num_classes))
    return samplers.every(samplers.knn_label(k), build_period("knn_softmax", sizes))


def _forest(sizes: Sizes) -> Sampler:
    return samplers.hashing_forest(sizes.k, near=sizes.near, schedule=build_period("hf_softmax", sizes))


# What finds classes for every example; groups share what is found.
RETRIEVALS: dict[str, Callable[[Sizes], Sampler]] = {
    "ann_softmax": _ivf,
    "knn_softmax": _knn,
    "hf_softmax": _forest,
    "lsh_softmax": _lsh,
}
# All that table 3 compares, the reference first.
METHODS: tuple[MethodName, ...] = get_args(MethodName)


def method(name: MethodName, sizes: Sizes, loss: Loss) -> tuple[Sampler | None, Callable[..., Any]]:
    """A sampler and the loss to train with; without a sampler, the loss is over all classes."""
    if name == "full_softmax":
        return None, losses.over_all_classes(loss)
    if name == "partial_fc":
        return samplers.partial_fc(sizes.num_sampled), loss
    found = RETRIEVALS[name](sizes)
    return samplers.grouped(found, num_sampled=sizes.num_sampled, num_groups=sizes.num_groups), loss


# All are uncorrected: none of the paper's methods corrects for the classes left out.
LOSSES: dict[LossName, Loss] = {
    "softmax": losses.with_margin(functools.partial(losses.cosface, margin=0.0, scale=_SCALE), losses.subset_softmax),
    "arcface": losses.with_margin(losses.arcface, losses.subset_softmax),
    "cosface": losses.with_margin(losses.cosface, losses.subset_softmax),
    "d_softmax": losses.d_softmax,
}
