"""The functions that check a sampler, a retriever or a loss of your own against candax's laws."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from candax.base import Loss, Retriever, Sampler
from candax.checks import checked
from candax.losses.full import scores_all_classes
from candax.samplers import log_uniform
from candax.testing.bench import Bench, Case, name_of
from candax.testing.broken import Clock, check_laws, chosen_laws
from candax.testing.likelihood_laws import LIKELIHOOD_LAWS
from candax.testing.loss_bench import LossBench
from candax.testing.loss_laws import LOSS_LAWS
from candax.testing.problems import NUM_LABELS, Support, every_valid_class
from candax.testing.retriever_laws import RETRIEVER_LAWS, RetrieverBench
from candax.testing.sampler_laws import SAMPLER_LAWS


@checked
def check_sampler(
    factory: Sampler | Callable[[], Sampler],
    *,
    support: Support | None = None,
    also_counted: Support | None = None,
    num_groups: int | None = 1,
    delta: float = 0.01,
    random: bool = True,
    cautious: bool = False,
    cost_grows: bool = False,
    fills_slots: bool = True,
    each_group: bool = False,
    num_valid: int = 21,
    num_classes: int | None = None,
    laws: str | Iterable[str] | None = None,
    seconds: float = 60.0,
) -> None:
    """Checks a sampler against candax's laws on a small problem of 4 examples; returns nothing if it obeys them all.

    The one law, E[sum_s mask_s 1{ids_s = c} exp(-log_expected_count_s)] = 1 for every class c that can be drawn, is
    tested with two gates: the mean is within 5 standard errors of 1, and 5 standard errors are less than ``delta``.
    What its expectation runs over is ``sampler.facts.law_over``: with "index" and "batch" every draw has a new state,
    with "batch" also a new batch, of classes that are equally frequent as labels and in ``classes.counts``. A gross
    fault ends the test in seconds; ``seconds`` bounds its time. A sampler of which ``facts.exact`` is False states
    approximate counts: the one law is tested only if ``laws`` names it. What is drawn after an update and a refresh is
    looked at with fewer draws, for each group, on classes with padding rows and on classes without, and after a refresh
    on fewer classes.

    ``facts.alike`` and ``share`` are checked where they are given: alike slots hold each class equally often, those of
    two groups are independent, and a share of two has half of them. Unless ``facts.of_batch``, the counts of one shared
    set must not follow the batch. Where counts follow the draw, those of ids that were not drawn are checked too, to
    within a factor of 2 on average.

    Args:
        factory: the sampler, or a function without arguments that returns it. Let it draw few samples (say 6), so
            that few draws see a bias.
        support: which classes it can draw, as ``(classes, query, groups) -> bool[groups, num_classes]`` of numpy
            (default: all valid ones).
        also_counted: classes outside the support that have a finite count nevertheless, of the same form.
        num_groups: how many candidate sets it draws for the 4 examples (1, 2 or 4; None: one per example).
        delta: the relative bias that must be seen: 1 %, or more where every draw needs a new index.
        random: False for a sampler that draws the same candidates for every key.
        cautious: True if counts do not depend on the draw here although ``facts.draw_independent`` is False.
        cost_grows: True for a sampler that is meant to look at all classes: excuses it from law 5.
        fills_slots: False for a sampler without replacement that may leave slots empty though classes are left.
        each_group: True: test the one law for each group, not for their average (up to 4 times as many draws).
        num_valid: classes of the problem that can be drawn.
        num_classes: rows of its class vectors, padding included (default ``num_valid + 3``); what comes after updates
            is also looked at with as many classes.
        laws: names of the laws to check, keys of ``candax.testing.SAMPLER_LAWS`` (default: all,
            but "one_law" where ``facts.exact`` is False).
        seconds: bound on the time; a compilation under way at the end is still finished.

    Raises:
        LawBroken: a law is broken, or not decided in time. The message names the law, the class, by how much, and
            what to look at.
        TypeError: ``factory`` is not a sampler and does not return one.
        ValueError: an argument is out of its range.

    Example:
        >>> import candax as cx
        >>> from candax.testing import check_sampler
        >>> check_sampler(lambda: cx.samplers.uniform(6), laws=["ids", "agreement", "facts", "closure"])

        A sampler whose counts are too large by 2 %:

        >>> import jax.numpy as jnp
        >>> good = cx.samplers.uniform(6)
        >>> faulty = good._replace(log_expected_count=lambda *args: good.log_expected_count(*args) + jnp.log(1.02))
        >>> check_sampler(faulty, laws=["agreement"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        candax.testing.LawBroken: ..., law 1 (agreement): class ... was drawn with log expected count ...
    """
    num_classes = num_valid + 3 if num_classes is None else num_classes
    _check_sizes(num_valid, num_classes)
    _check_groups(num_groups)
    _check_positive(delta=delta, seconds=seconds)
    names = chosen_laws(laws, SAMPLER_LAWS, list(SAMPLER_LAWS))
    case = Case(
        support=every_valid_class if support is None else support,
        also_counted=also_counted,
        num_groups=num_groups,
        delta=delta,
        random=random,
        cautious=cautious,
        cost_grows=cost_grows,
        fills_slots=fills_slots,
        each_group=each_group,
        num_valid=num_valid,
        num_classes=num_classes,
    )
    clock = Clock(seconds)
    bench = Bench(factory, case, clock)
    if laws is None and not bench.sampler.facts.exact:
        names.remove("one_law")
    check_laws(names, SAMPLER_LAWS, bench, name_of(bench.sampler), clock)


@checked
def check_retriever(
    retriever: Retriever,
    *,
    k: int = 6,
    recall: float = 1.0,
    follows: bool = True,
    cost_grows: bool = False,
    num_valid: int = 21,
    num_classes: int | None = None,
    laws: str | Iterable[str] | None = None,
    seconds: float = 60.0,
) -> None:
    """Checks a retriever against candax's laws on a small problem of 8 queries; returns nothing if it obeys them all.

    What is found, its scores and the recall are asked for of a normalised head too. After ``follow`` and ``refresh``
    classes with padding rows and classes without are looked at, and ``refresh`` is given other classes than those that
    the index was built for: the stated recall holds there too.

    Args:
        retriever: to be checked.
        k: how many classes are asked for.
        recall: the share of the k best classes that it must find, on average.
        follows: True: what it finds after ``follow`` is what it finds when built anew with the same key. False: changed
            rows need only be found after a refresh.
        cost_grows: True for a retriever that is meant to look at all classes: excuses it from law 5.
        num_valid: classes of the problem.
        num_classes: rows of its class vectors, padding included (default ``num_valid + 3``).
        laws: names of the laws to check, keys of ``candax.testing.RETRIEVER_LAWS`` (default: all).
        seconds: bound on the time; a compilation under way at the end is still finished.

    Raises:
        LawBroken: a law is broken, or not decided in time. The message names the law, where, and what to look at.
        ValueError: an argument is out of its range.

    Example:
        >>> import candax as cx
        >>> from candax.testing import check_retriever
        >>> index = cx.samplers.exact_index()
        >>> check_retriever(index, laws=["recall"])
        >>> halved = index._replace(search=lambda *args: (index.search(*args)[0] / 2, index.search(*args)[1]))
        >>> check_retriever(halved, laws=["scores"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        candax.testing.LawBroken: exact, the law of the types (scores): class ... has score ...
    """
    num_classes = num_valid + 3 if num_classes is None else num_classes
    if not 6 <= num_valid <= num_classes or not 1 <= k <= num_valid or not 0 <= recall <= 1 or not seconds > 0:
        raise ValueError(
            f"expected 6 <= num_valid <= num_classes, 1 <= k <= num_valid, 0 <= recall <= 1 and seconds > 0; got "
            f"num_valid={num_valid}, num_classes={num_classes}, k={k}, recall={recall} and seconds={seconds}."
        )
    case = Case(cost_grows=cost_grows, num_valid=num_valid, num_classes=num_classes)
    clock = Clock(seconds)
    bench = RetrieverBench(retriever, k, recall, follows, case)
    check_laws(chosen_laws(laws, RETRIEVER_LAWS, list(RETRIEVER_LAWS)), RETRIEVER_LAWS, bench, retriever.kind, clock)


@checked
def check_loss(
    loss: Loss,
    *,
    likelihood: bool = False,
    corrected: bool | Literal["all"] = True,
    monotone: bool = True,
    surrogate: bool = False,
    unbiased_normaliser: bool = False,
    sampler: Sampler | Callable[[], Sampler] | None = None,
    support: Support | None = None,
    num_groups: int | None = 1,
    num_valid: int = 21,
    laws: str | Iterable[str] | None = None,
    seconds: float = 60.0,
) -> None:
    """Checks a loss against candax's laws on small random logits; returns nothing if it obeys them all.

    Args:
        loss: ``SampledLogits -> float32[B]``, with its hyperparameters bound (``functools.partial``).
        likelihood: True: the loss approximates the softmax negative log-likelihood. So with every class as a candidate
            and expected count 1 it is the full softmax, adding a constant to all logits does not change it, the
            gradient weights of an example are in [-1, 1] and sum to 0, and labels without a slot (``more_hits``) stay
            in its normaliser.
        corrected: False for a likelihood that uses no expected counts, as ``subset_softmax``. True: it is the full
            softmax too where classes stand several times among the candidates and their counts say so. "all", of any
            loss: true and sampled logits stand as o - log_expected_count, as in ``nce``. How counts enter is asked of
            no other loss that is not a likelihood.
        monotone: False for a loss that may grow with the logit of its only label, or fall as those of other candidates
            grow, as label smoothing makes it. True: it does neither, and both do change it.
        surrogate: True for a loss that is meant to hold a part of itself constant, as where samples are weighted by
            how hard they are: its gradient is not that of its value.
        unbiased_normaliser: True: E[exp(loss + mean true logit)] is the softmax normaliser, for any sampler that obeys
            the one law.
        sampler: the sampler for that test (default ``candax.samplers.log_uniform(6)``).
        support: which classes that sampler can draw, as for ``check_sampler``.
        num_groups: how many candidate sets that sampler draws for 4 examples, as for ``check_sampler``.
        num_valid: classes in that test.
        laws: names of the laws to check, keys of ``candax.testing.LOSS_LAWS`` (default: all that the loss promises).
        seconds: bound on the time.

    Raises:
        LawBroken: a law is broken, or not decided in time. The message names the law, where, by how much, and what to
            look at.
        TypeError: ``loss`` cannot be called or returns no array.
        ValueError: an argument is out of its range, or the loss takes no ``SampledLogits``: it scores all classes.

    Example:
        >>> import candax as cx
        >>> from candax.testing import check_loss
        >>> check_loss(cx.losses.css, laws=["shape", "order", "alone"])
        >>> check_loss(lambda logits: cx.losses.css(logits).mean())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        candax.testing.LawBroken: <lambda>, the law of the types (shape): the loss has shape () where (5,) ...
    """
    if not callable(loss):
        raise TypeError(f"expected a function SampledLogits -> float32[B]; got {type(loss).__name__}: {loss!r}")
    if scores_all_classes(loss):
        raise ValueError(
            f"loss: expected a function SampledLogits -> float32[B]; got {_name(loss)}, which scores all classes "
            f"itself. Of over_all_classes(css) check css."
        )
    _check_sizes(num_valid, num_valid + 3)
    _check_groups(num_groups)
    _check_positive(seconds=seconds)
    promised = {"normaliser": unbiased_normaliser, "direction": monotone, "gradient": not surrogate} | dict.fromkeys(
        LIKELIHOOD_LAWS, likelihood
    )
    promised |= dict.fromkeys(("correction", "small_counts"), likelihood and bool(corrected))
    promised["all_counts"] = corrected == "all"
    names = chosen_laws(laws, LOSS_LAWS, [name for name in LOSS_LAWS if promised.get(name, True)])
    # All other laws rely on this one.
    names = ["shape", *(name for name in names if name != "shape")]
    case = Case(
        support=every_valid_class if support is None else support,
        num_groups=num_groups,
        num_valid=num_valid,
        num_classes=num_valid + 3,
    )
    clock = Clock(seconds)
    bench = LossBench(loss, log_uniform(6) if sampler is None else sampler, case, clock)
    check_laws(names, LOSS_LAWS, bench, _name(loss), clock)


def _name(loss: Any) -> str:
    while isinstance(loss, partial):
        loss = loss.func
    return getattr(loss, "__name__", type(loss).__name__)


def _check_sizes(num_valid: int, num_classes: int) -> None:
    if not NUM_LABELS <= num_valid <= num_classes:
        raise ValueError(f"expected {NUM_LABELS} <= num_valid <= num_classes; got {num_valid} and {num_classes}")


def _check_groups(num_groups: int | None) -> None:
    if num_groups not in (None, 1, 2, 4):
        raise ValueError(f"num_groups: expected 1, 2, 4 or None (one per example: 4); got {num_groups}")


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}: expected a number above 0; got {value}")
