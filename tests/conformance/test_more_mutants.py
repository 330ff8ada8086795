"""More planted faults: in what update and refresh write, in what functions hold, and in labels without a slot."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from candax import losses, samplers
from candax.base import Candidates, Loss, Query, SampledLogits, Sampler
from candax.testing import LawBroken, check_loss, check_sampler
from candax.testing.problems import classes_seen
from tests.conformance.test_mutants import SECONDS, broken, counts_times


def off_by(sampler: Sampler, error: Any, after: str = "init") -> Sampler:
    """Counts are too large by ``error`` nats, consistently, once the function named ``after`` was called.

    The error is in the state, or the order of sums may differ.
    """

    def started(wrong: bool) -> Any:
        return lambda key, classes: (sampler.init(key, classes), jnp.float32(error) * wrong)

    def sample(state: Any, key: Array, query: Query) -> Candidates:
        found = sampler.sample(state[0], key, query)
        return dataclasses.replace(found, log_expected_count=found.log_expected_count + state[1])

    def log_expected_count(state: Any, candidates: Candidates, ids: Array, query: Query) -> Array:
        return sampler.log_expected_count(state[0], candidates, ids, query) + state[1]

    anew = started(after != "update")
    functions: dict[str, Any] = {"init": started(after == "init"), "refresh": lambda state, *args: anew(*args)}
    if after == "update":
        functions["update"] = lambda state, *args: (state[0], jnp.float32(error))
    return sampler._replace(sample=sample, log_expected_count=log_expected_count, **functions)


def test_later_law_sees_an_update_that_draws_padding_rows() -> None:
    good = samplers.learned_unigram(6, memory=16)

    def update(state: Any, *args: Any) -> Any:
        return dataclasses.replace(good.update(state, *args), num_valid=state.num_valid + 5)

    broken("later", good._replace(update=update), r"after an update, class 2\d is")


def test_later_law_sees_counts_misstated_after_an_update_or_a_refresh() -> None:
    uniform = samplers.uniform(6)
    check_sampler(off_by(uniform, 0.0, "update"), laws=["later"])
    broken("later", off_by(uniform, 0.07, "update"), "after an update, biased: the mean over 21 classes is 0.93")
    broken("later", off_by(uniform, -1.0, "update"), "after an update, biased at 2. of 21 classes")
    broken("later", off_by(samplers.unigram(6), 0.1, "refresh"), "after a refresh", support=classes_seen)


def test_later_law_sees_a_refresh_that_keeps_the_number_of_classes() -> None:
    good = samplers.uniform(6)
    stale: Any = {"refresh": lambda state, key, classes: state}
    broken("later", good._replace(**stale), "after a refresh on fewer classes, class .* is drawn though only ids below")


def test_facts_law_sees_counts_that_follow_the_batch() -> None:
    good = samplers.midx(6, num_codewords=4, num_groups=1)
    broken(
        "facts",
        good._replace(facts=dataclasses.replace(good.facts, of_batch=False)),
        "facts.of_batch is False, but the log",
    )


def test_randomness_law_sees_groups_that_are_shifts_of_one() -> None:
    good = samplers.uniform(6)

    def sample(state: Any, key: Array, query: Query) -> Candidates:
        found = good.sample(state, key, query)
        ids = (found.ids + jnp.arange(2)[:, None]) % query.classes.num_valid
        return Candidates(ids, *(jnp.repeat(part, 2, axis=0) for part in (found.log_expected_count, found.mask)))

    def log_expected_count(state: Any, found: Candidates, ids: Array, query: Query) -> Array:
        return jnp.repeat(good.log_expected_count(state, found, ids[:1], query)[:, :1], ids.shape[0], 0) + 0.0 * ids

    shifted = good._replace(sample=sample, log_expected_count=log_expected_count)
    broken("randomness", shifted, "groups 0 and 1 hold the same class in the same slot 0 times", num_groups=2)


def test_later_law_sees_a_refresh_that_learns_nothing() -> None:
    seen, smoothed = samplers.unigram(6), samplers.unigram(6, smoothing=1.0)
    distinct = samplers.unigram(6, smoothing=1.0, replacement=False)
    stale: Any = {"refresh": lambda state, key, classes: state}
    zeros: Any = {"refresh": lambda state, key, classes: jax.tree.map(jnp.zeros_like, state)}
    broken("later", seen._replace(**stale), "after a refresh on other classes, class .* support", support=classes_seen)
    for sampler in (smoothed, distinct):
        broken("later", sampler._replace(**stale), "after a refresh on other classes, .* after init on these it has")
    broken(
        "later",
        smoothed._replace(**zeros),
        "after a refresh on other classes, class 0 is in the support and has .* -inf",
    )


def test_what_can_hardly_repeat_need_not() -> None:
    check_sampler(samplers.uniform(1), laws=["ids", "few_classes"])
    check_sampler(samplers.uniform(2), laws=["ids"], num_valid=9000)
    distinct = samplers.uniform(6, replacement=False)
    facts = dataclasses.replace(distinct.facts, with_replacement=True)
    broken("ids", distinct._replace(facts=facts), "no class came twice in one set in any of 512 draws")


TABLE, SETTING = np.zeros(24, np.float32), 6


@dataclasses.dataclass
class Holder:
    """Draws as another sampler does, with an array of its own."""

    sampler: Sampler
    held: Any

    def __call__(self, *args: Any) -> Candidates:
        return self.sampler.sample(*args)

    def sample(self, *args: Any) -> Candidates:
        return self(*args)


def test_closure_law_sees_arrays_of_objects_and_globals() -> None:
    uniform = samplers.uniform(SETTING)

    def reads_a_global(*args: Any) -> Candidates:
        found = uniform.sample(*args)
        return jax.tree.map(lambda leaf: leaf + TABLE[0].astype(leaf.dtype), found)

    broken("closure", uniform._replace(sample=Holder(uniform, jnp.zeros(3))), "closed over: sample.held")
    broken("closure", uniform._replace(sample=Holder(uniform, [TABLE]).sample), "closed over: sample.self.held.0")
    broken("closure", uniform._replace(sample=reads_a_global), "closed over: sample.TABLE")
    check_sampler(uniform._replace(sample=Holder(uniform, 3).sample), laws=["closure"])


def without_more_hits(logits: SampledLogits) -> Array:
    """Labels without a slot are left out of the normaliser, as if they were beside the samples."""
    hits = logits.hits if logits.more_hits is None else logits.hits | logits.more_hits
    return losses.css(dataclasses.replace(logits, hits=hits))


def counts_masked_more_hits(logits: SampledLogits) -> Array:
    more = jnp.zeros_like(logits.hits) if logits.more_hits is None else logits.more_hits
    return losses.css(logits) * (1 + jnp.sum(more, axis=1))


def counts_labels_twice(logits: SampledLogits) -> Array:
    number = 1 if logits.num_labels is None else logits.num_labels
    return losses.negative_sampling(logits) * number


@pytest.mark.parametrize(
    ("law", "faulty"),
    [
        ("more_hits", without_more_hits),
        ("more_labels", counts_masked_more_hits),
        ("more_labels", counts_labels_twice),
    ],
)
def test_loss_laws_see_faults_in_labels_without_a_slot(law: str, faulty: Loss) -> None:
    with pytest.raises(LawBroken, match=rf"law of the types \({law}\): .*\n.*\n"):
        check_loss(faulty, laws=[law], seconds=SECONDS)


def of_the_first_label(logits: SampledLogits) -> Array:
    first = logits.true_mask & (jnp.arange(logits.true.shape[1]) == 0)
    return losses.nce(dataclasses.replace(logits, true_mask=first))


def without_nan(logits: SampledLogits) -> Array:
    """A loss that takes what has gone wrong for no loss at all."""
    values = losses.css(logits)
    return jnp.where(values > 0, values, 0.0)


def half_constant(logits: Array) -> Array:
    """The same numbers with half the gradient."""
    return 0.5 * logits + jax.lax.stop_gradient(0.5 * logits)


def changed(loss: Loss, name: str, change: Any) -> Loss:
    return lambda logits: loss(dataclasses.replace(logits, **{name: change(getattr(logits, name))}))


def mean_over_slots(logits: SampledLogits) -> Array:
    """Masked slots add nothing, and are counted."""
    keep = logits.sampled_mask & ~logits.hits
    negative = jnp.mean(jnp.where(keep, jax.nn.softplus(jnp.where(keep, logits.sampled, 0.0)), 0.0), axis=1)
    positive = losses.negative_sampling(dataclasses.replace(logits, sampled_mask=jnp.zeros_like(keep)))
    return positive + jnp.where(jnp.any(logits.true_mask, axis=1), negative, 0.0)


@pytest.mark.parametrize(
    ("law", "faulty"),
    [
        ("masked", mean_over_slots),
        ("true_counts", changed(losses.sampled_softmax, "true_log_expected_count", lambda counts: -counts)),
        ("true_counts", changed(losses.sampled_softmax, "true_log_expected_count", lambda counts: counts / 2)),
        ("all_counts", changed(losses.nce, "true_log_expected_count", lambda counts: -counts)),
        ("all_counts", changed(losses.nce, "sampled_log_expected_count", lambda counts: -counts)),
        ("correction", changed(losses.css, "sampled_log_expected_count", lambda counts: -counts)),
        ("correction", changed(losses.css, "sampled_log_expected_count", lambda counts: counts + np.log(2))),
        ("correction", changed(losses.css, "sampled_log_expected_count", lambda counts: 0 * counts)),
        ("correction", losses.subset_softmax),
        ("small_counts", changed(losses.css, "sampled_log_expected_count", lambda counts: jnp.maximum(counts, -3.0))),
        ("unmasked", without_nan),
        ("order", of_the_first_label),
        ("direction", changed(losses.negative_sampling, "sampled", lambda logits: -logits)),
        ("direction", changed(losses.nce, "sampled", jax.lax.stop_gradient)),
        ("direction", changed(losses.blackout, "true", lambda logits: -logits)),
        ("direction", changed(losses.gbce, "true", jax.lax.stop_gradient)),
        ("gradient", changed(losses.negative_sampling, "sampled", half_constant)),
        ("gradient", changed(losses.ranking, "true", half_constant)),
    ],
)
def test_loss_laws_see_faults_of_signs_corrections_and_labels(law: str, faulty: Loss) -> None:
    with pytest.raises(LawBroken, match=rf"law (\d|of the types) \({law}\): .*\n.*\n"):
        check_loss(faulty, laws=[law], seconds=SECONDS)


def test_a_loss_says_that_its_gradient_is_not_its_own() -> None:
    with pytest.raises(LawBroken, match="say surrogate=True"):
        check_loss(changed(losses.nce, "sampled", half_constant), seconds=SECONDS)
    check_loss(changed(losses.nce, "sampled", half_constant), surrogate=True, seconds=SECONDS)


def test_a_loss_says_that_it_needs_no_correction_or_no_direction() -> None:
    with pytest.raises(LawBroken, match="say corrected=False"):
        check_loss(losses.subset_softmax, likelihood=True, seconds=SECONDS)
    check_loss(losses.subset_softmax, corrected=False, likelihood=True, seconds=SECONDS)
    smoothed = losses.with_smoothing(losses.css, 0.2)
    with pytest.raises(LawBroken, match="say monotone=False"):
        check_loss(smoothed, seconds=SECONDS)
    check_loss(smoothed, monotone=False, seconds=SECONDS)


def test_later_law_sees_a_filler_that_is_clamped_to_the_last_row() -> None:
    good = samplers.kernel(6, leaf_size=4, num_groups=1)

    def update(state: Any, key: Array, query: Query, row_ids: Array, rows: Array) -> Any:
        return good.update(state, key, query, jnp.minimum(row_ids, query.classes.num_classes - 1), rows)

    broken("later", good._replace(update=update), "without padding rows, after an update, ")


def test_later_law_sees_opposite_errors_of_two_groups() -> None:
    # Weights of 0.95 and 1.05, whose mean is right.
    faulty = off_by(samplers.uniform(6, num_groups=2), -np.log([[0.95], [1.05]]))
    broken("later", faulty, r"after an update, biased.*\(group [01]\)", num_groups=2)


def test_facts_law_sees_slots_that_are_not_alike() -> None:
    def told_alike(sampler: Sampler) -> Sampler:
        return sampler._replace(facts=dataclasses.replace(sampler.facts, alike=True))

    good = samplers.unigram(6, smoothing=4.0)
    check_sampler(good, laws=["facts"])

    def in_order(*args: Any) -> Candidates:
        found = good.sample(*args)
        order = jnp.argsort(found.ids, axis=1)
        ids, counts = (jnp.take_along_axis(part, order, 1) for part in (found.ids, found.log_expected_count))
        return dataclasses.replace(found, ids=ids, log_expected_count=counts)

    broken("facts", told_alike(samplers.uniform(6, replacement=False)), "alike is True, but facts.with_replacement is")
    follows = told_alike(samplers.resampled(samplers.uniform(12), 6, scale=0.2))
    broken("facts", follows, "alike is True, but facts.draw_independent is False", num_groups=None)
    broken("facts", good._replace(sample=in_order), r"alike is True, but slot \d holds class \d+ in")


def test_share_law_sees_a_shard_that_draws_what_the_whole_draws() -> None:
    good = samplers.uniform(6)
    check_sampler(good, laws=["share"])
    check_sampler(samplers.uniform(5), laws=["share"])
    check_sampler(samplers.in_batch(), laws=["share"])
    broken("share", good._replace(share=lambda number: samplers.uniform(6)), "of one of two shards, 6 where half")


def test_undrawn_law_sees_counts_of_other_ids() -> None:
    good = samplers.unigram(6, smoothing=1.0, replacement=False)

    def log_expected_count(state: Any, candidates: Candidates, ids: Array, query: Query) -> Array:
        counts = good.log_expected_count(state, candidates, ids, query)
        drawn = jnp.any((ids[:, :, None] == candidates.ids[:, None]) & candidates.mask[:, None], axis=2)
        return jnp.where(drawn | (counts == -jnp.inf), counts, counts - np.log(8))

    check_sampler(good, laws=["undrawn"])
    faulty = good._replace(log_expected_count=log_expected_count)
    check_sampler(faulty, laws=["agreement", "facts"])
    broken("undrawn", faulty, r"class \d+ is drawn .* drawn or not, is 0.\d+ on average")


def test_the_one_law_is_not_asked_of_approximate_counts() -> None:
    good = samplers.unigram(6, smoothing=1.0)
    approximate = off_by(good, 0.1)._replace(facts=dataclasses.replace(good.facts, exact=False))
    check_sampler(approximate, seconds=SECONDS)
    broken("one_law", approximate, "biased")


@pytest.mark.parametrize("num_groups", [1, 2])
def test_a_sampler_of_the_batch_is_right_without_help(num_groups: int) -> None:
    in_batch = samplers.in_batch(num_groups=num_groups)
    told: Any = {"num_groups": num_groups, "random": False, "num_valid": 6}
    check_sampler(in_batch, laws=["agreement", "one_law", "later"], seconds=SECONDS, **told)
    faulty = counts_times(in_batch, 1.05)
    broken("one_law", faulty, "biased", **told)


def test_facts_law_sees_alike_slots_that_follow_each_other() -> None:
    good = samplers.uniform(6)

    def sample(*args: Any) -> Candidates:
        found = good.sample(*args)
        return dataclasses.replace(found, ids=jnp.broadcast_to(found.ids[:, :1], found.ids.shape))

    broken("facts", good._replace(sample=sample), "hold the same class 15 times per draw, where 0.7")


def test_randomness_law_sees_two_groups_with_one_key() -> None:
    good = samplers.uniform(6, num_groups=4)

    def sample(*args: Any) -> Candidates:
        found = good.sample(*args)
        return dataclasses.replace(found, ids=found.ids.at[2].set(found.ids[1]))

    broken("randomness", good._replace(sample=sample), "group 2 always draws what group 1 draws", num_groups=4)


def test_padded_law_sees_what_is_done_with_examples_without_labels_or_length() -> None:
    good = samplers.uniform(6)

    def ids_of_none(state: Any, key: Array, query: Query) -> Candidates:
        found, none = good.sample(state, key, query), jnp.any(jnp.all(query.labels < 0, axis=1))
        return dataclasses.replace(found, ids=jnp.where(none, 99, found.ids))

    def counts_of_units(state: Any, key: Array, query: Query) -> Candidates:
        found, lengths = good.sample(state, key, query), jnp.linalg.norm(query.embeddings, axis=1)
        return dataclasses.replace(found, log_expected_count=found.log_expected_count + 0 * jnp.sum(1 / lengths))

    broken("padded", good._replace(sample=ids_of_none), "where an example is padding, class 99 is out of range")
    broken(
        "padded", good._replace(sample=counts_of_units), "where an example is padding, .* a count that is not finite"
    )
