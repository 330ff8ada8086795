"""Planted faults: each breaks one law, and the suite must see it. A law that no fault breaks tests nothing."""

import dataclasses
import functools
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from candax import losses, samplers
from candax.base import Candidates, Loss, SampledLogits, Sampler
from candax.losses.common import minus_log_expected_count, without_hits
from candax.samplers import static
from candax.samplers.common.distinct import Distinct
from candax.testing import LawBroken, check_loss, check_sampler
from candax.testing.problems import classes_seen

# 30 on a machine that does nothing else; two workers share two cores here, and perhaps the machine is slow.
SECONDS = 240.0


def counts_times(sampler: Sampler, factor: float) -> Sampler:
    """Counts misstated by a factor, consistently."""

    def sample(*args: Any) -> Candidates:
        found = sampler.sample(*args)
        return dataclasses.replace(found, log_expected_count=found.log_expected_count + np.log(factor))

    def log_expected_count(*args: Any) -> Array:
        return sampler.log_expected_count(*args) + np.log(factor)

    return sampler._replace(sample=sample, log_expected_count=log_expected_count)


def changed_ids(sampler: Sampler, change: Callable[[Array], Array]) -> Sampler:
    """Other ids, with the counts of the ids that were drawn."""

    def sample(*args: Any) -> Candidates:
        found = sampler.sample(*args)
        return dataclasses.replace(found, ids=change(found.ids))

    return sampler._replace(sample=sample)


def draws_next_class(sampler: Sampler) -> Sampler:
    """What is drawn is off by one from what the counts speak of."""

    def sample(state: Any, key: Array, query: Any) -> Candidates:
        found = sampler.sample(state, key, query)
        ids = (found.ids + 1) % 21
        return dataclasses.replace(
            found, ids=ids, log_expected_count=sampler.log_expected_count(state, found, ids, query)
        )

    return sampler._replace(sample=sample)


def reports_counts_of(drawn: Sampler, reported: Sampler) -> Sampler:
    """Draws from one distribution (both must share the kind of state) and reports another's counts."""

    def init(key: Array, classes: Any) -> Any:
        return drawn.init(key, classes), reported.init(key, classes)

    def sample(state: Any, key: Array, query: Any) -> Candidates:
        found = drawn.sample(state[0], key, query)
        counts = reported.log_expected_count(state[1], found, found.ids, query)
        return dataclasses.replace(found, log_expected_count=counts)

    def log_expected_count(state: Any, candidates: Candidates, ids: Array, query: Any) -> Array:
        return reported.log_expected_count(state[1], candidates, ids, query)

    return drawn._replace(init=init, sample=sample, log_expected_count=log_expected_count)


def truncated_unique(num_sampled: int) -> Sampler:
    """Without replacement by cutting the sorted distinct ids of a block of draws: the tail ids are dropped."""
    good = samplers.log_uniform(num_sampled, ids_ranked=True, replacement=False)
    block = samplers.log_uniform(4 * num_sampled, ids_ranked=True)

    def sample(state: Any, key: Array, query: Any) -> Candidates:
        found = good.sample(state, key, query)
        drawn = block.sample(dataclasses.replace(state, support=None, support_size=None), key, query).ids
        ids = jnp.unique(drawn, size=num_sampled, fill_value=23)[None]
        counts = good.log_expected_count(state, found, ids, query)
        mask = ids < query.classes.num_valid
        return Candidates(ids, jnp.where(mask, counts, 0.0), mask, found.draw)

    return good._replace(sample=sample)


def race_with_last_kept_arrival(key: Array, ids: Array, log_prob: Array, num_sampled: int) -> Distinct:
    """The race, but tau is the arrival of the S-th class, which is kept, instead of the (S+1)-th."""
    possible = log_prob > -jnp.inf
    times = jnp.where(possible, jax.random.exponential(key, ids.shape) * jnp.exp(-log_prob), jnp.inf)
    first, order = jax.lax.top_k(-times, num_sampled)
    return Distinct(ids[order], -first < jnp.inf, -first[-1])


def broken(law: str, factory: Sampler | Callable[[], Sampler], says: str = "", **case: Any) -> None:
    """The fault is found within the 30 seconds that a fault may take, and the message names the law."""
    start = time.monotonic()
    with pytest.raises(LawBroken, match=rf"law \d \({law}\)|law of the types \({law}\)") as caught:
        check_sampler(factory, laws=[law], seconds=SECONDS, **case)
    assert re.search(says, str(caught.value)), caught.value
    assert time.monotonic() - start < 30


one_law_broken = functools.partial(
    broken, "one_law", says=r"biased at .* class \d+: mean|outside the support: class \d+"
)


def test_one_law_sees_counts_off_by_two_percent() -> None:
    one_law_broken(counts_times(samplers.uniform(6), 1.02))
    one_law_broken(counts_times(samplers.unigram(6), 1 / 1.02), support=classes_seen)
    one_law_broken(counts_times(samplers.uniform(6, replacement=False), 1.02))


def test_one_law_sees_a_power_off_by_five_hundredths() -> None:
    faulty = reports_counts_of(samplers.unigram(6, power=0.8), samplers.unigram(6, power=0.75))
    one_law_broken(faulty, support=classes_seen)


def test_one_law_sees_ids_off_by_one() -> None:
    one_law_broken(draws_next_class(samplers.unigram(6, power=0.5, smoothing=5.0)), delta=0.1)
    one_law_broken(draws_next_class(samplers.log_uniform(6)), delta=0.1)


def test_one_law_sees_a_truncated_sorted_unique() -> None:
    one_law_broken(truncated_unique(6), delta=0.1)


def test_one_law_sees_the_wrong_arrival_as_tau(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "race", race_with_last_kept_arrival)
    one_law_broken(samplers.log_uniform(6, replacement=False), delta=0.03)


@pytest.mark.slow
def test_one_law_sees_observed_tries_as_tau() -> None:
    """TensorFlow's count, 1 - (1 - q)^tries, is biased: the number of tries stops on a class that is kept."""
    good = samplers.unigram(6, replacement=False)
    many = samplers.unigram(64)

    def sample(state: Any, key: Array, query: Any) -> Candidates:
        """The first 6 distinct of 64 draws, and how many draws that took."""
        with_replacement = dataclasses.replace(state, support=None, support_size=None)
        drawn = many.sample(with_replacement, key, query).ids[0]
        new = ~jnp.any((drawn[:, None] == drawn[None, :]) & (jnp.arange(64)[:, None] > jnp.arange(64)), axis=1)
        place = jnp.nonzero(new, size=6)[0]
        found = Candidates(drawn[place][None], jnp.zeros((1, 6)), jnp.ones((1, 6), bool), draw=place[-1:] + 1)
        counts = good_count(state, found, found.ids, query)
        return dataclasses.replace(found, log_expected_count=counts)

    def good_count(state: Any, candidates: Candidates, ids: Array, query: Any) -> Array:
        with_replacement = dataclasses.replace(state, support=None, support_size=None)
        prob = jnp.exp(many.log_expected_count(with_replacement, candidates, ids, query)) / 64
        return jnp.log(-jnp.expm1(candidates.draw[:, None] * jnp.log1p(-prob)))

    one_law_broken(good._replace(sample=sample, log_expected_count=good_count), support=classes_seen)


def test_ids_law_sees_padding_impossible_classes_repeats_and_narrow_ids() -> None:
    uniform = samplers.uniform(6)

    def init_with_padding(key: Array, classes: Any) -> Any:
        return uniform.init(key, dataclasses.replace(classes, num_valid=jnp.int32(classes.num_classes)))

    broken("ids", uniform._replace(init=init_with_padding), r"class 2[123] is drawn though only ids below 21 are valid")
    broken("ids", changed_ids(uniform, lambda ids: ids - 1), "class -1 is out of range")
    broken("ids", changed_ids(uniform, lambda ids: ids.astype(jnp.int16)), "ids are int16 where int32 is expected")
    broken("ids", samplers.uniform(6), "class 1?[016] is drawn outside the support", support=classes_seen)
    repeating = samplers.uniform(6, replacement=False).facts
    broken("ids", uniform._replace(facts=repeating), r"class \d+ is drawn twice in one set")


def test_agreement_law_sees_counts_of_other_ids() -> None:
    unigram = samplers.unigram(6)
    broken("agreement", changed_ids(unigram, lambda ids: (ids + 1) % 21), r"class \d+ was drawn", support=classes_seen)
    other = unigram._replace(sample=counts_times(unigram, 1.0001).sample)
    broken("agreement", other, r"class \d+ was drawn with log expected count", support=classes_seen)
    broken("agreement", unigram, r"class 1 is in the support and has log expected count -inf")


def test_facts_law_sees_false_facts() -> None:
    unigram, distinct = samplers.unigram(6), samplers.unigram(6, replacement=False)
    covering = dataclasses.replace(unigram.facts, covers_all=True)
    independent = dataclasses.replace(distinct.facts, draw_independent=True)
    broken("facts", unigram._replace(facts=covering), "covers_all is True, but class 1", support=classes_seen)
    broken("facts", distinct._replace(facts=independent), "draw_independent is True, but", support=classes_seen)
    broken("facts", unigram._replace(facts=distinct.facts), "draw_independent is False", support=classes_seen)


def test_state_laws_see_another_dtype() -> None:
    uniform = samplers.uniform(6)

    def refresh(state: Any, key: Array, classes: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), state)

    broken("state", uniform._replace(refresh=refresh), "refresh changes .* from int32.* to float32")
    broken("retrace", uniform._replace(refresh=refresh), "traced again")


def test_randomness_law_sees_fixed_keys_and_equal_groups() -> None:
    uniform = samplers.uniform(6, num_groups=2)
    fixed = uniform._replace(sample=lambda state, key, query: uniform.sample(state, jax.random.key(0), query))
    broken("randomness", fixed, "the key is ignored", num_groups=2)
    same = changed_ids(uniform, lambda ids: jnp.broadcast_to(ids[:1], ids.shape))
    broken("randomness", same, "group 1 always draws what group 0 draws", num_groups=2)


def test_closure_law_sees_a_held_array() -> None:
    uniform, held = samplers.uniform(6), jnp.arange(3)
    broken("closure", changed_ids(uniform, lambda ids: ids + 0 * held[0]), "arrays are closed over: sample.*held")


def test_few_classes_law_sees_a_slot_left_empty() -> None:
    """Only where classes are fewer than slots: the slot of the last class found is masked."""
    distinct = samplers.uniform(6, replacement=False)

    def sample(*args: Any) -> Candidates:
        found = distinct.sample(*args)
        few = jnp.sum(found.mask, axis=1, keepdims=True) < found.mask.shape[1]
        last = jnp.cumsum(found.mask, axis=1) == jnp.sum(found.mask, axis=1, keepdims=True)
        return dataclasses.replace(found, mask=found.mask & ~(few & last))

    broken("few_classes", distinct._replace(sample=sample), "3 classes are drawn in group 0 where 4 can be")


def test_cost_law_sees_a_pass_over_all_classes() -> None:
    def factory() -> Sampler:
        good = samplers.unigram(6)

        def sample(state: Any, key: Array, query: Any) -> Candidates:
            noise = jax.random.uniform(key, (query.classes.num_classes,))
            return dataclasses.replace(good.sample(state, key, query), ids=jax.lax.top_k(noise, 6)[1][None])

        return good._replace(sample=sample)

    broken("cost", factory, "bytes of scratch at 100,000 classes")


def softmax_keeping_hits(logits: SampledLogits) -> Array:
    return losses.css(dataclasses.replace(logits, hits=jnp.zeros_like(logits.hits)))


def softmax_over_masked(logits: SampledLogits) -> Array:
    """Concatenates, and adds -inf to masked slots instead of replacing them."""
    sampled = minus_log_expected_count(logits.sampled, logits.sampled_log_expected_count)
    sampled = sampled + jnp.where(without_hits(logits), 0.0, -jnp.inf)
    true = jnp.where(logits.true_mask, logits.true, -jnp.inf)
    together = jax.nn.logsumexp(jnp.concatenate([true, sampled], axis=1), axis=1)
    mean = jnp.sum(jnp.where(logits.true_mask, logits.true, 0), axis=1) / jnp.maximum(logits.true_mask.sum(axis=1), 1)
    return jnp.where(logits.true_mask.any(axis=1), together - mean, 0.0)


def masked_after_exp(logits: SampledLogits) -> Array:
    """The right value, but the gradient of a masked NaN is 0 * NaN."""
    kept = jnp.where(without_hits(logits), jnp.exp(logits.sampled), 0.0)
    true = jnp.where(logits.true_mask, jnp.exp(logits.true), 0.0)
    total = kept.sum(axis=1) + true.sum(axis=1)
    mean = jnp.sum(jnp.where(logits.true_mask, logits.true, 0), axis=1) / jnp.maximum(logits.true_mask.sum(axis=1), 1)
    return jnp.where(logits.true_mask.any(axis=1), jnp.log(total) - mean, 0.0)


def exp_without_maximum(logits: SampledLogits) -> Array:
    corrected = minus_log_expected_count(logits.sampled, logits.sampled_log_expected_count)
    return masked_after_exp(dataclasses.replace(logits, sampled=corrected))


def correction_without_guard(logits: SampledLogits) -> Array:
    return losses.subset_softmax(dataclasses.replace(logits, true=logits.true - logits.true_log_expected_count))


def sum_over_labels(logits: SampledLogits) -> Array:
    return losses.css(logits) * logits.true_mask.sum(axis=1)


def first_slot_ignored(logits: SampledLogits) -> Array:
    return losses.css(dataclasses.replace(logits, sampled_mask=logits.sampled_mask.at[:, 0].set(False)))


def reduced(logits: SampledLogits) -> Array:
    return jnp.mean(losses.css(logits))


def trains_counts(logits: SampledLogits) -> Array:
    counts = jnp.where(logits.sampled_mask, logits.sampled_log_expected_count, 0.0)
    return losses.css(logits) + counts.sum(axis=1) - jax.lax.stop_gradient(counts.sum(axis=1))


@pytest.mark.parametrize(
    ("law", "faulty"),
    [
        ("full_coverage", softmax_keeping_hits),
        ("full_coverage", sum_over_labels),
        ("full_coverage", lambda logits: 1.02 * losses.css(logits)),
        ("full_coverage", lambda logits: jax.lax.stop_gradient(losses.css(logits))),
        ("masked", softmax_over_masked),
        ("masked", masked_after_exp),
        ("finite", exp_without_maximum),
        ("finite", correction_without_guard),
        ("gradient_weights", lambda logits: 1.02 * losses.css(logits)),
        ("gradient_weights", sum_over_labels),
        ("order", first_slot_ignored),
        ("alone", lambda logits: losses.css(logits) - jnp.mean(losses.css(logits))),
        ("shift", lambda logits: losses.css(logits) + 1e-3 * logits.true[:, 0]),
        ("counts", trains_counts),
        ("shape", reduced),
    ],
)
def test_loss_laws_see_faults(law: str, faulty: Loss) -> None:
    with pytest.raises(LawBroken, match=rf"law (\d|of the types) \({law}\): .*\n.*\n"):
        check_loss(faulty, laws=[law], seconds=SECONDS)


@pytest.mark.parametrize("faulty", [softmax_keeping_hits, losses.subset_softmax, losses.sampled_softmax])
def test_normaliser_law_sees_hits_kept_and_other_corrections(faulty: Loss) -> None:
    with pytest.raises(LawBroken, match=r"law 1 \(normaliser\): biased .* the normaliser of example"):
        check_loss(faulty, laws=["normaliser"], seconds=SECONDS)
