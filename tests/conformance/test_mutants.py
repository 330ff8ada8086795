"""Planted faults: each breaks one law, and the suite must see it. A law that no fault breaks tests nothing."""

import dataclasses
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
from candax.samplers.distinct import Distinct
from tests.conformance import loss_laws, sampler_laws
from tests.conformance.sampler_laws import Bench
from tests.conformance.tables import SamplerCase, classes_seen, every_valid_class, make_classes


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


def one_law_broken(
    sampler: Sampler, support: Callable[..., np.ndarray] = every_valid_class, delta: float = 0.01
) -> None:
    with pytest.raises(AssertionError, match=r"biased|outside the support"):
        sampler_laws.check_one_law(Bench(SamplerCase(lambda g: sampler, support, delta=delta), 1, make_classes()))


def test_one_law_sees_counts_off_by_two_percent() -> None:
    one_law_broken(counts_times(samplers.uniform(6), 1.02))
    one_law_broken(counts_times(samplers.unigram(6), 1 / 1.02), classes_seen)
    one_law_broken(counts_times(samplers.uniform(6, replacement=False), 1.02))


def test_one_law_sees_a_power_off_by_five_hundredths() -> None:
    one_law_broken(reports_counts_of(samplers.unigram(6, power=0.8), samplers.unigram(6, power=0.75)), classes_seen)


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

    one_law_broken(good._replace(sample=sample, log_expected_count=good_count), classes_seen)


def law_broken(check: Callable[[Bench], None], sampler: Sampler, num_groups: int | None = 1, **case: Any) -> None:
    with pytest.raises(AssertionError):
        check(Bench(SamplerCase(lambda g: sampler, **case), num_groups, make_classes()))


def test_ids_law_sees_padding_impossible_classes_repeats_and_narrow_ids() -> None:
    check = sampler_laws.check_ids
    uniform = samplers.uniform(6)

    def init_with_padding(key: Array, classes: Any) -> Any:
        return uniform.init(key, dataclasses.replace(classes, num_valid=jnp.int32(classes.num_classes)))

    law_broken(check, uniform._replace(init=init_with_padding))
    law_broken(check, changed_ids(uniform, lambda ids: ids - 1))
    law_broken(check, changed_ids(uniform, lambda ids: ids.astype(jnp.int16)))
    law_broken(check, samplers.uniform(6), support=classes_seen)
    repeating = samplers.uniform(6, replacement=False).facts
    law_broken(check, uniform._replace(facts=repeating))


def test_agreement_law_sees_counts_of_other_ids() -> None:
    check = sampler_laws.check_counts_agree
    unigram = samplers.unigram(6)
    law_broken(check, changed_ids(unigram, lambda ids: (ids + 1) % 21), support=classes_seen)
    law_broken(check, unigram._replace(sample=counts_times(unigram, 1.0001).sample), support=classes_seen)
    law_broken(check, unigram, support=every_valid_class)


def test_facts_law_sees_false_facts() -> None:
    check = sampler_laws.check_facts
    unigram, distinct = samplers.unigram(6), samplers.unigram(6, replacement=False)
    covering = dataclasses.replace(unigram.facts, covers_all=True)
    independent = dataclasses.replace(distinct.facts, draw_independent=True)
    law_broken(check, unigram._replace(facts=covering), support=classes_seen)
    law_broken(check, distinct._replace(facts=independent), support=classes_seen)
    law_broken(check, unigram._replace(facts=distinct.facts), support=classes_seen)


def test_state_law_sees_another_dtype() -> None:
    uniform = samplers.uniform(6)

    def refresh(state: Any, key: Array, classes: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), state)

    law_broken(sampler_laws.check_state_keeps_structure, uniform._replace(refresh=refresh))
    with pytest.raises(AssertionError, match="traced"):
        sampler_laws.check_no_retrace(
            Bench(SamplerCase(lambda g: uniform._replace(refresh=refresh)), 1, make_classes())
        )


def test_randomness_law_sees_fixed_keys_and_equal_groups() -> None:
    check = sampler_laws.check_randomness
    uniform = samplers.uniform(6, num_groups=2)
    law_broken(
        check, uniform._replace(sample=lambda state, key, query: uniform.sample(state, jax.random.key(0), query))
    )
    law_broken(check, changed_ids(uniform, lambda ids: jnp.broadcast_to(ids[:1], ids.shape)), num_groups=2)


def test_closure_law_sees_a_held_array() -> None:
    uniform, held = samplers.uniform(6), jnp.arange(3)
    law_broken(sampler_laws.check_holds_no_arrays, changed_ids(uniform, lambda ids: ids + 0 * held[0]))


def test_cost_law_sees_a_pass_over_all_classes() -> None:
    def factory(num_groups: int | None) -> Sampler:
        good = samplers.unigram(6)

        def sample(state: Any, key: Array, query: Any) -> Candidates:
            noise = jax.random.uniform(key, (query.classes.num_classes,))
            return dataclasses.replace(good.sample(state, key, query), ids=jax.lax.top_k(noise, 6)[1][None])

        return good._replace(sample=sample)

    case = SamplerCase(factory)
    with pytest.raises(AssertionError):
        sampler_laws.check_cost(Bench(case, 1, make_classes()), 1)


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


@pytest.mark.parametrize(
    ("check", "faulty"),
    [
        (loss_laws.check_full_coverage, softmax_keeping_hits),
        (loss_laws.check_full_coverage, sum_over_labels),
        (loss_laws.check_full_coverage, lambda logits: 1.02 * losses.css(logits)),
        (loss_laws.check_full_coverage, lambda logits: jax.lax.stop_gradient(losses.css(logits))),
        (loss_laws.check_masked_do_not_matter, softmax_over_masked),
        (loss_laws.check_masked_do_not_matter, masked_after_exp),
        (loss_laws.check_finite_at_the_edges, exp_without_maximum),
        (loss_laws.check_finite_at_the_edges, correction_without_guard),
        (loss_laws.check_gradient_weights, lambda logits: 1.02 * losses.css(logits)),
        (loss_laws.check_gradient_weights, sum_over_labels),
        (loss_laws.check_order_does_not_matter, first_slot_ignored),
        (loss_laws.check_examples_stand_alone, lambda logits: losses.css(logits) - jnp.mean(losses.css(logits))),
        (loss_laws.check_shift_does_not_matter, lambda logits: losses.css(logits) + 1e-3 * logits.true[:, 0]),
        (loss_laws.check_shape, reduced),
    ],
)
def test_loss_laws_see_faults(check: Callable[[Loss], None], faulty: Loss) -> None:
    with pytest.raises(AssertionError):
        check(faulty)


@pytest.mark.parametrize("faulty", [softmax_keeping_hits, losses.subset_softmax, losses.sampled_softmax])
def test_normaliser_law_sees_hits_kept_and_other_corrections(faulty: Loss) -> None:
    support = np.broadcast_to(np.arange(24) < 21, (4, 24))
    with pytest.raises(AssertionError, match="biased"):
        loss_laws.check_unbiased_normaliser(faulty, samplers.log_uniform(6), support, make_classes())
