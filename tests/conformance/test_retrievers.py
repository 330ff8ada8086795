"""Every retriever obeys the laws, and faults that are planted in them are found."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from candax import samplers, testing
from candax.base import Retriever


class RetrieverCase(NamedTuple):
    """A retriever in the suite; ``told`` goes to ``check_retriever``."""

    retriever: Retriever
    told: Mapping[str, Any] = MappingProxyType({})


# All classes are seen by ivf, forest and labels, so that what they find is exact; "few seen" see a part of them.
RETRIEVERS: dict[str, RetrieverCase] = {
    "exact": RetrieverCase(samplers.exact_index(block_size=8), {"cost_grows": True}),
    "ivf": RetrieverCase(samplers.ivf_index(num_centers=4, hm_num=24, num_kept=24)),
    "ivf few seen": RetrieverCase(
        samplers.ivf_index(num_centers=8, hm_num=60, num_kept=30, codes="rotated", near="logit"),
        {"recall": 0.5, "follows": False, "num_valid": 200},
    ),
    "ivf int8": RetrieverCase(samplers.ivf_index(num_centers=4, hm_num=24, num_kept=24, codes="int8")),
    "lsh": RetrieverCase(
        samplers.lsh_index(hash=samplers.simhash(), num_tables=6, num_hashes=3, capacity=24), {"recall": 0.5}
    ),
    "lsh label": RetrieverCase(
        samplers.lsh_index("label", num_tables=4, num_hashes=1, hash=samplers.dwta(2), near="logit", update_every=2),
        {"recall": 0.5, "follows": False},
    ),
    "forest": RetrieverCase(samplers.forest_index(num_trees=3, leaf_size=24)),
    "forest few seen": RetrieverCase(
        samplers.forest_index(num_trees=9, leaf_size=8, num_kept=30), {"recall": 0.5, "follows": False}
    ),
    "labels": RetrieverCase(samplers.label_index(20, block_size=8)),
    "labels anew": RetrieverCase(samplers.label_index(20, from_graph=False), {"cost_grows": True}),
}


@pytest.mark.parametrize("name", RETRIEVERS)
def test_retriever(name: str) -> None:
    case = RETRIEVERS[name]
    testing.check_retriever(case.retriever, seconds=600, **case.told)


def _finding(change: Any) -> Any:
    good = RETRIEVERS["lsh"].retriever
    return good._replace(search=lambda *args: change(*good.search(*args)))


def _without_biases(state: Any, query: Any, k: int) -> Any:
    scores, ids = RETRIEVERS["lsh"].retriever.search(state, query, k)
    return jnp.where(scores > -jnp.inf, scores - query.classes.biases[ids], scores), ids


def _shortlisting(change: Any) -> Any:
    good = RETRIEVERS["ivf int8"].retriever
    assert good.shortlist is not None
    of_groups = good.shortlist
    return good._replace(shortlist=lambda *args: change(*of_groups(*args)))


# What is planted, the laws that are asked, and what is said.
FAULTS = {
    "stale follow": (
        RETRIEVERS["lsh"].retriever._replace(follow=lambda state, key, ids, rows: state),
        "follow",
        "after follow, example .* finds",
    ),
    "scores 2 % too large": (_finding(lambda scores, ids: (1.02 * scores, ids)), "scores", "its logit is"),
    "scores without biases": (RETRIEVERS["lsh"].retriever._replace(search=_without_biases), "scores", "its logit is"),
    "ids twice": (_finding(lambda scores, ids: (scores, ids.at[:, 1].set(ids[:, 0]))), "found", "is returned twice"),
    "worst first": (_finding(lambda scores, ids: (scores[:, ::-1], ids[:, ::-1])), "found", "do not fall"),
    "padding rows": (_finding(lambda scores, ids: (scores, ids + 1)), "found", "is returned, of|without a class"),
    "recall": (_finding(lambda scores, ids: (scores, 0 * ids)), "recall", "recall at 6 is 0"),
    "shortlist of ids out of range": (
        _shortlisting(lambda scores, ids: (jnp.zeros_like(scores), jnp.full_like(ids, 99))),
        "shortlist",
        "class 99 is in a shortlist, of 21 valid",
    ),
    "shortlist of one group": (
        _shortlisting(lambda scores, ids: (scores.reshape(1, -1), ids.reshape(1, -1))),
        "shortlist",
        r"shortlist of 2 groups returned .* of \[2, n\] are expected",
    ),
    "shortlist of NaN": (
        _shortlisting(lambda scores, ids: (scores * jnp.nan, ids)),
        "shortlist",
        "a score of a shortlist is NaN",
    ),
    "shortlist of anything": (
        _shortlisting(lambda scores, ids: (scores, 0 * ids)),
        "shortlist",
        "the shortlists of 1 groups have 0",
    ),
    "scores of half precision": (
        _finding(lambda scores, ids: (scores.astype(jnp.float16), ids)),
        "found",
        "scores float16.* where float32 and int32",
    ),
    "state": (
        RETRIEVERS["exact"].retriever._replace(refresh=lambda state, key, classes: (jax.random.key(0),)),
        "follow",
        "refresh changed the state",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    retriever, law, says = FAULTS[name]
    with pytest.raises(testing.LawBroken, match=rf"\({law}\): .*({says})"):
        testing.check_retriever(retriever, laws=[law], recall=0.5, seconds=600)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="got num_valid=5"):
        testing.check_retriever(samplers.exact_index(), num_valid=5)
