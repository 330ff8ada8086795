"""``candax.testing`` on samplers and losses of a user's own: right ones pass, gross faults end in seconds."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import candax as cx
from candax.base import Candidates, Facts, SampledLogits, Sampler, never, no_update
from candax.testing import LOSS_LAWS, RETRIEVER_LAWS, SAMPLER_LAWS, LawBroken, check_loss, check_sampler

FACTS = Facts(covers_all=True, draw_independent=True, with_replacement=True)


def own_sampler(
    num_sampled: int = 6,
    change: Callable[[Candidates], Candidates] = lambda found: found,
    factor: float = 1.0,
    rows_too: bool = False,
) -> Sampler:
    """Uniform over the valid classes, as a user may write it; ``change`` plants a fault in what is drawn."""

    def number(query: Any) -> Any:
        return query.classes.num_classes if rows_too else query.classes.num_valid

    def count(state: Any, candidates: Any, ids: Any, query: Any) -> Any:
        possible = ids < query.classes.num_valid
        return jnp.where(possible, jnp.log(factor * num_sampled / query.classes.num_valid), -jnp.inf)

    def sample(state: Any, key: Any, query: Any) -> Candidates:
        ids = jax.random.randint(key, (1, num_sampled), 0, number(query))
        counts = jnp.log(factor * num_sampled / query.classes.num_valid)
        return change(Candidates(ids, jnp.full(ids.shape, counts), jnp.ones(ids.shape, bool)))

    return Sampler(lambda key, classes: (), sample, count, no_update, lambda state, key, classes: (), never, FACTS)


def own_loss(logits: SampledLogits) -> jax.Array:
    """Complementary sum sampling of one label, written out."""
    counts = jax.lax.stop_gradient(logits.sampled_log_expected_count)
    kept = logits.sampled_mask & ~logits.hits & (counts > -jnp.inf)
    weighed = jnp.where(kept, jnp.where(kept, logits.sampled, 0.0) - jnp.where(kept, counts, 0.0), -jnp.inf)
    true = jnp.where(logits.true_mask, logits.true, -jnp.inf)
    everything = jnp.concatenate([true, weighed], axis=1)
    labelled = jnp.any(logits.true_mask, axis=1)
    none = everything == -jnp.inf
    top = jax.lax.stop_gradient(jnp.max(jnp.where(none, -1e30, everything), axis=1, initial=-1e30))
    terms = jnp.where(none, 0, jnp.exp(jnp.where(none, 0, everything) - top[:, None]))
    total = jnp.sum(terms, axis=1)
    labels = jnp.maximum(jnp.sum(logits.true_mask, axis=1), 1)
    mean = jnp.sum(jnp.where(logits.true_mask, logits.true, 0.0), axis=1) / labels
    return jnp.where(labelled, jnp.log(jnp.where(labelled, total, 1.0)) + jnp.where(labelled, top, 0.0) - mean, 0.0)


def with_arrays(**new: Any) -> Callable[[Candidates], Candidates]:
    """Replaces fields without the run-time type checks of the tests, which a user does not have."""

    def change(found: Candidates) -> Candidates:
        fields = {name: getattr(found, name) for name in ("ids", "log_expected_count", "mask")}
        fields |= {name: make(fields[name]) for name, make in new.items()}
        return jax.tree.unflatten(jax.tree.structure(found), list(fields.values()))

    return change


def test_samplers_and_losses_of_ones_own_pass() -> None:
    check_sampler(own_sampler)
    check_sampler(own_sampler(), laws=["ids", "agreement"])
    check_loss(own_loss, likelihood=True, unbiased_normaliser=True)


FAULTS: dict[str, tuple[Any, str]] = {
    "constant ids": (own_sampler(change=with_arrays(ids=jnp.zeros_like)), r"law 7 \(randomness\): the key is ignored"),
    "counts that are NaN": (
        own_sampler(change=with_arrays(log_expected_count=lambda counts: counts + jnp.nan)),
        r"law 2 \(ids\): class \d+ is drawn with a count that is not finite",
    ),
    "ids of another dtype": (
        own_sampler(change=with_arrays(ids=lambda ids: ids.astype(jnp.float32))),
        r"law 2 \(ids\).*: ids are float32 where int32",
    ),
    "a mask of another shape": (
        own_sampler(change=with_arrays(mask=lambda mask: mask[0])),
        r"law 2 \(ids\).*: mask have shape \(6,\) and ids \(1, 6\)",
    ),
    "padding rows": (own_sampler(rows_too=True), r"law 2 \(ids\): class 2[123] is drawn though only ids below 21"),
    "counts too large by 10": (own_sampler(factor=10.0), r"law 1 \(one_law\): biased .* class \d+: mean 0\.\d+"),
    "counts too small by 10": (own_sampler(factor=0.1), r"law 1 \(one_law\): biased .* %, \d+\.\d standard errors"),
    "one class never drawn": (
        own_sampler(change=with_arrays(ids=lambda ids: jnp.where(ids == 7, 8, ids))),
        r"law 1 \(one_law\): biased .* class [78]: mean",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_gross_faults_of_samplers_end_in_seconds(name: str) -> None:
    sampler, message = FAULTS[name]
    start = time.monotonic()
    with pytest.raises(LawBroken, match=message):
        check_sampler(sampler)
    # A few seconds, on a machine that does nothing else.
    assert time.monotonic() - start < 40


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda logits: jnp.mean(cx.losses.css(logits)), r"\(shape\): the loss has shape \(\) where \(5,\)"),
        (lambda logits: cx.losses.css(logits).astype(jnp.bfloat16), r"\(shape\): the loss is bfloat16"),
        (lambda logits: jnp.log(jnp.sum(jnp.exp(logits.sampled), axis=1)), r"\(masked\): "),
        (
            lambda logits: cx.losses.css(logits) + 0 * jnp.exp(jnp.where(logits.true_mask, logits.true, 0) * 2).sum(1),
            r"law 4 \(finite\): the loss is not finite at true logits 80",
        ),
    ],
)
def test_gross_faults_of_losses_end_in_seconds(loss: Any, message: str) -> None:
    start = time.monotonic()
    with pytest.raises(LawBroken, match=message):
        check_loss(loss)
    # A few seconds, on a machine that does nothing else.
    assert time.monotonic() - start < 40


def test_what_would_take_too_long_is_not_begun() -> None:
    """A class that is drawn once in 40,000 draws: 1 % of it would take hours."""

    def count(state: Any, candidates: Any, ids: Any, query: Any) -> Any:
        prob = jnp.where(ids == 7, 2.5e-5, (1 - 2.5e-5) / 20)
        return jnp.where(ids < 21, jnp.log(prob), -jnp.inf)

    def sample(state: Any, key: Any, query: Any) -> Candidates:
        ids = jax.random.randint(key, (1, 1), 0, 20)
        ids = jnp.where(jax.random.uniform(jax.random.fold_in(key, 1)) < 2.5e-5, 7, ids + (ids >= 7))
        return Candidates(ids, count((), None, ids, None), jnp.ones((1, 1), bool))

    start = time.monotonic()
    with pytest.raises(
        LawBroken, match=r"not decided: .*class 7 has the most spread: .* draws would be needed"
    ) as caught:
        check_sampler(own_sampler()._replace(sample=sample, log_expected_count=count), laws=["one_law"])
    assert "larger seconds=" in str(caught.value)
    assert time.monotonic() - start < 20


def test_the_bound_on_time_names_what_is_not_decided() -> None:
    with pytest.raises(LawBroken, match="these laws are not decided: facts, one_law"):
        check_sampler(own_sampler, laws=["one_law", "facts"], seconds=1e-9)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a candax.Sampler or a function .*arguments \(num_sampled"):
        check_sampler(lambda num_sampled: own_sampler(num_sampled))
    with pytest.raises(TypeError, match="factory returned int"):
        check_sampler(lambda: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match=r"expected names among ids, .*; got 'idds'"):
        check_sampler(own_sampler, laws=["idds"])
    with pytest.raises(ValueError, match="num_groups: expected 1, 2, 4 or None"):
        check_sampler(own_sampler, num_groups=3)
    with pytest.raises(ValueError, match="3 <= num_valid <= num_classes"):
        check_sampler(own_sampler, num_valid=2)
    with pytest.raises(ValueError, match="seconds: expected a number above 0"):
        check_loss(own_loss, seconds=0)
    for loss in (cx.losses.full_softmax, cx.losses.over_all_classes(cx.losses.css)):
        with pytest.raises(ValueError, match=r"loss: expected .*; got .*, which scores all classes itself"):
            check_loss(loss)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"support: expected bool\[groups, num_classes\] = bool\[1, 24\]"):
        check_sampler(own_sampler, support=lambda classes, query, groups: jnp.ones(3, bool).__array__())
    with pytest.raises(LawBroken, match="1 groups are drawn for a batch of 4 where 4 are expected"):
        check_sampler(own_sampler, num_groups=None)


def test_tables_name_every_law() -> None:
    for laws in (SAMPLER_LAWS, RETRIEVER_LAWS, LOSS_LAWS):
        assert all(law.says and law.advice for law in laws.values())


def test_the_room_needs_nothing_but_candax() -> None:
    """As from an installed wheel: without what only tests depend on."""
    code = (
        "import sys\n"
        "for name in ('pytest', 'hypothesis', 'tests'): sys.modules[name] = None\n"
        "import candax as cx\n"
        "from candax.testing import check_loss, check_sampler\n"
        "check_sampler(cx.samplers.uniform(6), laws=['ids', 'facts'])\n"
        "check_loss(cx.losses.css, laws=['shape', 'order'])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
