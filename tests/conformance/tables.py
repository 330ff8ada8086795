"""The table of all samplers and the table of all losses. A new one joins the conformance suite with one line here."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from candax import losses, samplers, testing
from candax.base import Classes, Loss, Query, Sampler, State
from candax.testing.problems import Support, classes_seen, every_valid_class, make_query


def _logits(classes: Classes, query: Query) -> np.ndarray:
    logits = np.asarray(query.embeddings) @ np.asarray(classes.vectors).T + np.asarray(classes.biases)
    return np.where(every_valid_class(classes, query, len(logits)), logits, -np.inf)


def best_classes(k: int) -> Support:
    """The k valid classes of highest logit, one group an example."""

    def support(classes: Classes, query: Query, groups: int) -> np.ndarray:
        logits = _logits(classes, query)
        kth = np.sort(logits, axis=1)[:, -k, None]
        return (logits >= kth) & (logits > -np.inf)

    return support


def labels(classes: Classes, query: Query, groups: int) -> np.ndarray:
    """The labels of each example, one group an example."""
    return np.any(np.asarray(query.labels)[:, :, None] == np.arange(classes.num_classes), axis=1)


def neighbours(k: int) -> Support:
    """The labels of a group and the k valid classes whose vectors have the largest cosine with theirs."""

    def support(classes: Classes, query: Query, groups: int) -> np.ndarray:
        num_valid = int(classes.num_valid)
        vectors = np.asarray(classes.vectors, np.float64)[:num_valid]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = vectors @ vectors.T - 3 * np.eye(num_valid)  # itself last
        nearest = np.argsort(-cosines, axis=1)[:, : min(k, num_valid - 1)]
        found = np.zeros((groups, classes.num_classes), bool)
        for group, of_group in enumerate(np.asarray(query.labels).reshape(groups, -1)):
            real = of_group[of_group >= 0]
            found[group, real] = found[group, nearest[real].ravel()] = True
        return found

    return support


class SamplerCase(NamedTuple):
    """A sampler in the suite.

    Attributes:
        factory: ``num_groups -> Sampler`` (None: one group an example). Few samples, so that few draws see a bias.
        groups: the numbers of groups it offers.
        slow: a variant of another one here, whose tests are among the slow ones.
        num_valid: classes in its tests, besides 3 padding rows.

    What the others mean is said by ``candax.testing.check_sampler``, which takes them.
    """

    factory: Callable[[int | None], Sampler]
    support: Support = every_valid_class
    also_counted: Support | None = None
    groups: tuple[int | None, ...] = (1, 2, None)
    delta: float = 0.01
    random: bool = True
    cautious: bool = False
    cost_grows: bool = False
    fills_slots: bool = True
    slow: bool = False
    num_valid: int = 21

    def check(self, num_groups: int | None, **options: Any) -> None:
        """Checks it by the laws; ``options`` go to ``check_sampler``."""
        told: dict[str, Any] = {name: getattr(self, name) for name in _TOLD}
        # Two tests at a time on a busy machine are not what the bound on time is for.
        told |= {"num_groups": num_groups, "seconds": 6000.0 if self.slow else 600.0}
        testing.check_sampler(partial(self.factory, num_groups), **(told | options))


_TOLD = ("support", "also_counted", "delta", "random", "cautious", "cost_grows", "fills_slots", "num_valid")


def after_updates(sampler: Sampler) -> Sampler:
    """With a state that has seen some batches."""

    def init(key: jax.Array, classes: Classes) -> State:
        state = sampler.init(key, classes)
        for i in range(3):
            query = make_query(jax.random.fold_in(key, i), classes, 8)
            state = sampler.update(state, jax.random.fold_in(key, 3 + i), query, jnp.arange(2), classes.vectors[:2])
        return state

    return sampler._replace(init=init)


# "Streamed": so few samples (under 1/8 of the classes) that distinct classes come from a stream instead of a race.
# Where counts follow the draw it takes 4 samples, and so more classes: with 2 their fourth moment is infinite.
SAMPLERS: dict[str, SamplerCase] = {
    "uniform": SamplerCase(lambda g: samplers.uniform(6, num_groups=g)),
    "uniform distinct": SamplerCase(lambda g: samplers.uniform(6, num_groups=g, replacement=False)),
    "uniform streamed": SamplerCase(lambda g: samplers.uniform(2, num_groups=g, replacement=False), slow=True),
    "log_uniform": SamplerCase(lambda g: samplers.log_uniform(6, num_groups=g)),
    "log_uniform ranked": SamplerCase(lambda g: samplers.log_uniform(6, num_groups=g, ids_ranked=True), slow=True),
    "log_uniform distinct": SamplerCase(lambda g: samplers.log_uniform(6, num_groups=g, replacement=False), slow=True),
    "log_uniform streamed": SamplerCase(
        lambda g: samplers.log_uniform(4, num_groups=g, replacement=False), slow=True, num_valid=45
    ),
    "unigram": SamplerCase(lambda g: samplers.unigram(6, num_groups=g), classes_seen),
    "unigram smoothed": SamplerCase(lambda g: samplers.unigram(6, power=1.0, smoothing=1.0, num_groups=g), slow=True),
    "unigram distinct": SamplerCase(
        lambda g: samplers.unigram(6, num_groups=g, replacement=False), classes_seen, slow=True
    ),
    "unigram streamed": SamplerCase(
        lambda g: samplers.unigram(4, power=0.25, num_groups=g, replacement=False),
        classes_seen,
        num_valid=45,
        slow=True,
    ),
    "top_k": SamplerCase(
        lambda g: samplers.top_k(6, block_size=8),
        best_classes(6),
        labels,
        groups=(None,),
        random=False,
        cost_grows=True,
    ),
    "bernoulli": SamplerCase(lambda g: samplers.bernoulli(10.0, power=0.3, num_slots=8, num_groups=g), classes_seen),
    "bernoulli smoothed": SamplerCase(
        lambda g: samplers.bernoulli(9.0, power=1.0, smoothing=1.0, num_slots=8, num_groups=g), slow=True
    ),
    "in_batch": SamplerCase(lambda g: samplers.in_batch(num_groups=g), random=False, num_valid=6),
    "learned_clusters": SamplerCase(
        lambda g: after_updates(
            samplers.learned_clusters(6, num_clusters=4, static_share=0.2, learning_rate=0.2, num_groups=g)
        ),
        slow=True,
    ),
    "learned_unigram": SamplerCase(
        lambda g: after_updates(samplers.learned_unigram(6, memory=16, uniform_share=0.5, num_groups=g)), slow=True
    ),
    "learned_unigram decaying": SamplerCase(
        lambda g: after_updates(samplers.learned_unigram(6, memory=8, decay=0.9, uniform_share=0.5, num_groups=g))
    ),
    "kernel": SamplerCase(lambda g: samplers.kernel(6, alpha=0.5, rank=3, leaf_size=4, num_groups=g)),
    "kernel positive": SamplerCase(
        lambda g: samplers.kernel(6, features="positive", scale=0.05, num_features=16, leaf_size=4, num_groups=g),
        slow=True,
    ),
    "midx": SamplerCase(lambda g: samplers.midx(6, num_codewords=3, scale=0.4, num_groups=g)),
    "midx residual": SamplerCase(
        lambda g: samplers.midx(6, num_codewords=2, codes="residual", power=0.5, scale=0.4, num_groups=g), slow=True
    ),
    "mixture": SamplerCase(
        lambda g: samplers.mixture([samplers.uniform(4, num_groups=g), samplers.unigram(3, num_groups=g)])
    ),
    # Mixed negatives: the labels of the batch (or of other groups), and classes of all.
    "mixture with in_batch": SamplerCase(
        lambda g: samplers.mixture([samplers.in_batch(num_groups=g), samplers.uniform(4, num_groups=g)]),
        num_valid=6,
        slow=True,
    ),
    "sharded": SamplerCase(lambda g: samplers.sharded(samplers.uniform(6, num_groups=g), 2)),
    "sharded distinct": SamplerCase(
        lambda g: samplers.sharded(samplers.log_uniform(6, num_groups=g, replacement=False), 2),
        slow=True,
        fills_slots=False,  # those of a shard with fewer classes stay empty
        cost_grows=True,  # without a mesh the ranks of each shard are cut out of those of all
    ),
    "with_tail": SamplerCase(
        lambda g: samplers.with_tail(
            samplers.uniform(3, num_groups=g, replacement=False), samplers.unigram(6, smoothing=4.0, num_groups=1)
        )
    ),
    "with_tail of top_k": SamplerCase(
        lambda g: samplers.with_tail(
            samplers.top_k(3, block_size=8), samplers.unigram(6, smoothing=1.0, num_groups=1, replacement=False)
        ),
        groups=(None,),
        cost_grows=True,
        slow=True,
    ),
    # Those that return what they find, and so no fixed number of classes, are in tests/samplers/lsh/test_laws.py.
    "lsh": SamplerCase(
        lambda g: samplers.lsh(
            hash=samplers.simhash(),
            num_tables=12,
            num_hashes=2,
            budget=8,
            capacity=3,
            fill="uniform",
            num_fill=4,
            num_groups=g,
        )
    ),
    "lsh label": SamplerCase(
        lambda g: samplers.lsh(
            "label",
            hash=samplers.dwta(2),
            num_tables=3,
            num_hashes=2,
            budget=8,
            take="all",
            fill="uniform",
            num_fill=4,
            num_groups=g,
        ),
        slow=True,
    ),
    "partial_fc": SamplerCase(lambda g: samplers.partial_fc(14, num_groups=g)),
    "knn_label": SamplerCase(lambda g: samplers.knn_label(3, num_groups=g, block_size=8), neighbours(3), random=False),
    "knn_label anew": SamplerCase(
        lambda g: samplers.knn_label(3, num_groups=g, block_size=8, from_graph=False),
        neighbours(3),
        random=False,
        cost_grows=True,
        slow=True,
    ),
    # All classes are visited and scored; where some are not, tests/samplers/test_ivf_index.py measures the recall.
    "ivf_bq": SamplerCase(
        lambda g: samplers.ivf_bq(6, num_centers=4, hm_num=24, num_kept=24),
        best_classes(6),
        labels,
        groups=(None,),
        random=False,
    ),
    "ivf_bq rotated": SamplerCase(
        lambda g: samplers.ivf_bq(6, num_centers=4, hm_num=24, num_kept=24, codes="rotated", near="logit"),
        best_classes(6),
        labels,
        groups=(None,),
        random=False,
        slow=True,
    ),
    "ivf_bq int8": SamplerCase(
        lambda g: samplers.ivf_bq(6, num_centers=4, hm_num=24, num_kept=24, codes="int8"),
        best_classes(6),
        labels,
        groups=(None,),
        random=False,
        slow=True,
    ),
    "ivf_bq grouped int8": SamplerCase(
        lambda g: samplers.ivf_bq(1, num_centers=4, hm_num=12, num_kept=12, num_sampled=18, num_groups=g, codes="int8"),
        slow=True,
    ),
    "ivf_bq grouped": SamplerCase(
        lambda g: samplers.ivf_bq(1, num_centers=4, hm_num=12, num_kept=12, num_sampled=18, num_groups=g)
    ),
    # All classes share one leaf; what splits find is measured in tests/samplers/test_hashing_forest.py.
    "hashing_forest": SamplerCase(
        lambda g: samplers.hashing_forest(6, num_trees=3, leaf_size=24),
        best_classes(6),
        labels,
        groups=(None,),
        random=False,
    ),
    "grouped top_k": SamplerCase(
        lambda g: samplers.grouped(samplers.top_k(1, block_size=8), num_sampled=18, num_groups=g),
        cost_grows=True,
        slow=True,
    ),
    # Tempered, or the rare classes of the one law would need very many draws.
    "resampled": SamplerCase(
        lambda g: samplers.resampled(samplers.uniform(12, num_groups=1), 6, scale=0.2), groups=(None,)
    ),
    "resampled top_k": SamplerCase(
        lambda g: samplers.resampled(samplers.top_k(6, block_size=8), 4, scale=0.2),
        best_classes(6),
        labels,
        groups=(None,),
        cautious=True,
        cost_grows=True,
        slow=True,
    ),
    "grouped exact_index": SamplerCase(
        lambda g: samplers.grouped(samplers.exact_index(block_size=8), num_sampled=18, num_groups=g, k=1),
        cost_grows=True,
        slow=True,
    ),
    "with_tail of buckets": SamplerCase(
        lambda g: samplers.with_tail(
            samplers.buckets(samplers.exact_index(block_size=8), 2, num_directions=2, num_groups=g),
            samplers.unigram(6, smoothing=4.0, num_groups=1),
        ),
        cost_grows=True,
    ),
    "every": SamplerCase(lambda g: samplers.every(samplers.uniform(6, num_groups=g), 2)),
}


class LossCase(NamedTuple):
    """A loss in the suite.

    Attributes:
        loss: ``SampledLogits -> float32[B]``, with its hyperparameters bound.
        likelihood: it approximates the softmax negative log-likelihood: with every class as a candidate and expected
            count 1 it is the full softmax, adding a constant to all logits does not change it, and the gradient weight
            of every class is in [-1, 1] with sum 0.
        corrected: where it is a likelihood, it uses expected counts; "all": they correct true and sampled logits.
        monotone: it never grows with the logit of its only label, nor falls as those of other candidates grow.
        unbiased_normaliser: exp(loss + mean true logit) estimates the softmax normaliser without bias.
    """

    loss: Loss
    likelihood: bool = True
    corrected: bool | Literal["all"] = True
    monotone: bool = True
    unbiased_normaliser: bool = False


LOSSES: dict[str, LossCase] = {
    "css": LossCase(losses.css, unbiased_normaliser=True),
    "sampled_softmax": LossCase(losses.sampled_softmax, corrected="all"),
    "subset_softmax": LossCase(losses.subset_softmax, corrected=False),
    "css redraw": LossCase(partial(losses.css, complement="redraw")),
    "importance_sampling": LossCase(losses.importance_sampling),
    "nce": LossCase(losses.nce, likelihood=False, corrected="all"),
    "nce without hits": LossCase(
        partial(losses.nce, log_normalizer=2.0, remove_hits=True), likelihood=False, corrected="all"
    ),
    "negative_sampling": LossCase(losses.negative_sampling, likelihood=False),
    "negative_sampling mean": LossCase(
        partial(losses.negative_sampling, reduction="mean", remove_hits=False), likelihood=False
    ),
    "negative_sampling of each label": LossCase(
        losses.each_label(partial(losses.negative_sampling, reduction="mean", sample_weight=5.0, remove_hits=False)),
        likelihood=False,
    ),
    "gbce": LossCase(losses.gbce, likelihood=False),
    "one_vs_all": LossCase(losses.one_vs_all, likelihood=False),
    "blackout": LossCase(losses.blackout, likelihood=False, corrected="all"),
    "ranking": LossCase(losses.ranking, likelihood=False),
    "ranking hinge": LossCase(partial(losses.ranking, penalty="hinge", reduction="mean"), likelihood=False),
    # Smoothing gives other candidates a target of their own, which a low logit falls short of.
    "css with smoothing": LossCase(losses.with_smoothing(losses.css, 0.2), likelihood=False, monotone=False),
    "css with arcface": LossCase(losses.with_margin(losses.arcface, losses.css), likelihood=False),
    "css with arcface of margin 0": LossCase(
        losses.with_margin(partial(losses.arcface, margin=0.0, scale=1.0), losses.css), unbiased_normaliser=True
    ),
    "sampled_softmax with cosface": LossCase(
        losses.with_margin(losses.cosface, losses.sampled_softmax), likelihood=False
    ),
    "d_softmax": LossCase(losses.d_softmax, likelihood=False),
    "d_softmax corrected": LossCase(partial(losses.d_softmax, scale=1.0, corrected=True), likelihood=False),
}
