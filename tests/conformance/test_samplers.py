"""Every sampler of the table obeys every law. A failure names the law."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import candax as cx
from candax.base import State
from candax.testing.problems import make_classes
from tests.conformance.tables import SAMPLERS

# One of each kind, one group an example (or the most there are): the rest are among the slow tests.
ALL = [(name, groups) for name, case in SAMPLERS.items() for groups in case.groups]
QUICK = [(name, case.groups[-1]) for name, case in SAMPLERS.items() if not case.slow]


@pytest.mark.parametrize(
    ("name", "num_groups"), [entry if entry in QUICK else pytest.param(*entry, marks=pytest.mark.slow) for entry in ALL]
)
def test_sampler(name: str, num_groups: int | None) -> None:
    SAMPLERS[name].check(num_groups, each_group=(name, num_groups) not in QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_one_law_with_fewer_classes_than_samples(name: str) -> None:
    SAMPLERS[name].check(SAMPLERS[name].groups[0], num_valid=4, num_classes=24, laws=["one_law"])


EMPTY = {name: (lambda sampler=sampler: sampler.factory(sampler.groups[-1])) for name, sampler in SAMPLERS.items()}
EMPTY["tail per example"] = lambda: cx.samplers.with_tail(cx.samplers.top_k(3), cx.samplers.top_k(5))
EMPTY["grouped index"] = lambda: cx.samplers.grouped(cx.samplers.exact_index(), num_sampled=8, num_groups=None)


# Of what learned_clusters learns with, Adam of optax promotes.
@pytest.mark.parametrize("name", sorted(SAMPLERS.keys() - {"learned_clusters"}))
def test_types_are_not_promoted(name: str) -> None:
    """Only traced, with an output layer of 16 bits: JAX refuses what is promoted."""
    of = make_classes()
    classes = dataclasses.replace(
        of, vectors=of.vectors.astype(jnp.bfloat16), biases=jnp.zeros(of.num_classes, jnp.bfloat16)
    )
    sampler = SAMPLERS[name].factory(SAMPLERS[name].groups[-1])

    def all_of_it(key: jax.Array) -> State:
        state = sampler.init(key, classes)
        query = cx.Query(classes.vectors[:4], jnp.arange(4, dtype=jnp.int32)[:, None], classes)
        found = sampler.sample(state, key, query)
        sampler.log_expected_count(state, found, query.labels.reshape(len(found.ids), -1), query)
        state = sampler.update(state, key, query, jnp.arange(2, dtype=jnp.int32), classes.vectors[:2])
        return sampler.refresh(state, key, classes)

    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(all_of_it, jax.random.key(0))


@pytest.mark.parametrize("name", EMPTY)
def test_a_batch_may_be_empty(name: str) -> None:
    """Only traced: it is shapes that an empty batch may not fit."""
    classes, key = make_classes(), jax.random.key(0)
    sampler = EMPTY[name]()

    def loss(state: State) -> jax.Array:
        nobody = jnp.zeros((0, classes.vectors.shape[1])), jnp.zeros((0, 2), jnp.int32)
        return cx.sampled_loss(*nobody, classes, sampler=sampler, state=state, key=key, loss=cx.losses.css)

    state = jax.eval_shape(sampler.init, key, classes)
    assert jax.eval_shape(loss, state).shape == ()
