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
from tests.conformance.test_mutants import SECONDS, broken


def misstates(sampler: Sampler, error: float, when: str) -> Sampler:
    """Counts are too large by ``error`` nats, consistently, once the function named ``when`` was called."""

    def init(key: Array, classes: Any) -> Any:
        return sampler.init(key, classes), jnp.float32(0)

    def after(*args: Any) -> Any:
        if when == "update":
            return args[0][0], jnp.float32(error)
        return sampler.init(args[1], args[2]), jnp.float32(error)

    def sample(state: Any, key: Array, query: Query) -> Candidates:
        found = sampler.sample(state[0], key, query)
        return dataclasses.replace(found, log_expected_count=found.log_expected_count + state[1])

    def log_expected_count(state: Any, candidates: Candidates, ids: Array, query: Query) -> Array:
        return sampler.log_expected_count(state[0], candidates, ids, query) + state[1]

    functions: dict[str, Any] = {"refresh": lambda state, key, classes: init(key, classes), when: after}
    return sampler._replace(init=init, sample=sample, log_expected_count=log_expected_count, **functions)


def test_later_law_sees_an_update_that_draws_padding_rows() -> None:
    good = samplers.learned_unigram(6, memory=16)

    def update(state: Any, *args: Any) -> Any:
        return dataclasses.replace(good.update(state, *args), num_valid=state.num_valid + 5)

    broken("later", good._replace(update=update), r"after an update, class 2\d is")


def test_later_law_sees_counts_misstated_after_an_update_or_a_refresh() -> None:
    uniform = samplers.uniform(6)
    check_sampler(misstates(uniform, 0.0, "update"), laws=["later"])
    broken("later", misstates(uniform, 0.07, "update"), "after an update, biased: the mean over 21 classes is 0.93")
    broken("later", misstates(uniform, -1.0, "update"), "after an update, biased at 2. of 21 classes")
    broken("later", misstates(samplers.unigram(6), 0.1, "refresh"), "after a refresh", support=classes_seen)


def test_later_law_sees_a_refresh_that_learns_nothing() -> None:
    seen, smoothed = samplers.unigram(6), samplers.unigram(6, smoothing=1.0)
    stale: Any = {"refresh": lambda state, key, classes: state}
    zeros: Any = {"refresh": lambda state, key, classes: jax.tree.map(jnp.zeros_like, state)}
    broken("later", seen._replace(**stale), "after a refresh on other classes, class .* support", support=classes_seen)
    broken("later", smoothed._replace(**stale), "after a refresh on other classes, .* after init on these it has")
    broken("later", smoothed._replace(**zeros), "after a refresh on other classes, class 24 is out of range")


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
