"""The laws of samplers for LSH samplers that return what they find, and so a random number of candidates.

Those that fill all their slots are in the table of the conformance suite.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax import samplers
from candax.samplers.lsh.codes import Hasher
from candax.samplers.lsh.dwta import dwta_collision
from candax.testing import SAMPLER_LAWS, LawBroken
from candax.testing.problems import make_classes, make_query
from tests.conformance.tables import SamplerCase


def concordant(bin_size):
    """The classes that winner-take-all can put into the bucket of an example."""

    def support(classes, query, groups):
        p = np.asarray(dwta_collision(query.embeddings, jnp.nan_to_num(classes.vectors), bin_size))
        return (p > -np.inf) & (np.arange(classes.num_classes) < int(classes.num_valid))

    return support


simhash = functools.partial(samplers.lsh, hash=samplers.simhash(), num_tables=3, num_hashes=2, capacity=None)
one_group = SamplerCase(lambda g: simhash(num_groups=g), groups=(None,), delta=0.05, random=False, fills_slots=False)

CASES = {
    "simhash": one_group,
    "simhash folded": one_group._replace(factory=lambda g: simhash(num_hashes=6, num_buckets=4, num_groups=g)),
    "simhash near the logit": one_group._replace(factory=lambda g: simhash(near="logit", num_groups=g)),
    "simhash, any of those found": one_group._replace(factory=lambda g: simhash(budget=6, take="all", num_groups=g)),
    "dwta": one_group._replace(
        factory=lambda g: simhash(hash=samplers.dwta(2), num_tables=5, num_groups=g), support=concordant(2)
    ),
}


# The others take longer than the quick suite has.
QUICK = ("simhash folded", "dwta")


NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_sampler(name):
    CASES[name].check(None, laws=[law for law in SAMPLER_LAWS if law != "cost"])


def with_faulty_counts(sampler, factor):
    def sample(*args):
        found = sampler.sample(*args)
        return dataclasses.replace(found, log_expected_count=found.log_expected_count + np.log(factor))

    return sampler._replace(sample=sample)


def one_law_broken(factory):
    case = one_group._replace(factory=factory)
    with pytest.raises(
        LawBroken, match=r"law 1 \(one_law\): (biased at .* class \d+: mean|not decided: .* class \d+ has)"
    ):
        case.check(None, laws=["one_law"], seconds=30.0)


@pytest.mark.parametrize("factor", [pytest.param(1.1, marks=pytest.mark.slow), 1 / 1.1])
def test_one_law_sees_counts_off_by_ten_percent(factor):
    one_law_broken(lambda g: with_faulty_counts(simhash(), factor))


def test_one_law_sees_counts_without_the_folding_term(monkeypatch):
    monkeypatch.setattr(Hasher, "log_same_bucket", lambda self, x, y: self.num_hashes * self.family.log_collision(x, y))
    one_law_broken(CASES["simhash folded"].factory)


@pytest.mark.parametrize(
    ("query", "num_groups", "near"),
    [
        ("embedding", 1, "logit"),
        ("label", None, "vector"),
        *[
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("embedding", 1, "vector"), ("embedding", 4, "vector"), ("label", 1, "logit"))
        ],
    ],
)
def test_cost_does_not_grow_with_num_classes(query, num_groups, near):
    def factory(num_groups):
        return samplers.lsh(
            query,
            hash=samplers.simhash(),
            near=near,
            num_tables=4,
            num_hashes=8,
            budget=16,
            num_buckets=64,
            num_groups=num_groups,
            update_every=2 if query == "label" else 1,
        )

    SamplerCase(factory).check(num_groups, laws=["cost"])


def test_counts_are_exact_where_tables_hold_the_present_vectors_only():
    """A class that changed stays in the buckets of its old vector until tables move; its count is of the new one."""
    assert simhash().facts.exact
    assert simhash(near="logit").facts.exact
    for update_every in (3, None):
        assert not simhash(update_every=update_every).facts.exact
        assert not samplers.mixture([simhash(update_every=update_every), samplers.uniform(2)]).facts.exact
        # What is found is then a fact, whyever it was found.
        assert simhash(update_every=update_every, budget=8, fill="uniform").facts.exact


def test_near_the_logit_tables_and_counts_take_the_biases_of_the_last_refresh():
    """Biases change at each step, and no table follows them: so counts must not either."""
    sampler, classes = simhash(near="logit"), make_classes()
    query = make_query(jax.random.key(1), classes)
    state = sampler.init(jax.random.key(0), classes)
    drawn = sampler.sample(state, jax.random.key(2), query)
    later = dataclasses.replace(query, classes=dataclasses.replace(classes, biases=classes.biases + 3.0))
    np.testing.assert_array_equal(drawn.ids, sampler.sample(state, jax.random.key(2), later).ids)
    wanted, counts = (sampler.log_expected_count(state, drawn, drawn.ids, of) for of in (query, later))
    np.testing.assert_array_equal(counts, wanted)
