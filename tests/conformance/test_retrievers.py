"""Every retriever obeys the laws, and faults that are planted in them are found."""

import dataclasses
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


def _nan_without_labels(state: Any, query: Any, k: int) -> Any:
    scores, ids = RETRIEVERS["lsh"].retriever.search(state, query, k)
    return jnp.where(jnp.any(query.labels >= 0, axis=1)[:, None], scores, jnp.nan), ids


def _halved_without_labels(state: Any, query: Any, k: int) -> Any:
    scores, ids = RETRIEVERS["lsh"].retriever.search(state, query, k)
    return jnp.where(jnp.any(query.labels >= 0, axis=1)[:, None], scores, scores / 2), ids


def _worst_without_labels(state: Any, query: Any, k: int) -> Any:
    """Of twice as many the last ones, whose scores are right, where labels are missing."""
    scores, ids = RETRIEVERS["exact"].retriever.search(state, query, 2 * k)
    some = jnp.any(query.labels >= 0, axis=1)[:, None]
    return tuple(jnp.where(some, part[:, :k], part[:, k:]) for part in (scores, ids))


def _with_biases_of_its_build() -> Retriever:
    good = RETRIEVERS["lsh"].retriever

    def search(state: Any, query: Any, k: int) -> Any:
        classes = query.classes
        biases = None if classes.biases is None else state[1]
        return good.search(state[0], dataclasses.replace(query, classes=dataclasses.replace(classes, biases=biases)), k)

    return good._replace(build=lambda key, classes: (good.build(key, classes), classes.biases), search=search)


def _follows_no_cosines() -> Retriever:
    """Its state says whether it is of a normalised head, whose rows then stay as they were."""
    good = RETRIEVERS["lsh"].retriever

    def follow(state: Any, *changed: Any) -> Any:
        kept = jax.tree.map(lambda old, new: jnp.where(state[1], old, new), state[0], good.follow(state[0], *changed))
        return kept, state[1]

    return good._replace(
        build=lambda key, classes: (good.build(key, classes), jnp.bool_(classes.normalized)),
        search=lambda state, query, k: good.search(state[0], query, k),
        follow=follow,
        refresh=lambda state, key, classes: (good.refresh(state[0], key, classes), jnp.bool_(classes.normalized)),
    )


def _shortlisting(change: Any) -> Any:
    good = RETRIEVERS["ivf int8"].retriever
    assert good.shortlist is not None
    of_groups = good.shortlist
    return good._replace(shortlist=lambda *args: change(*of_groups(*args)))


def _ranks_by_products(state: Any, query: Any, k: int) -> Any:
    """The best by the product of embedding and vector, whatever the head; their scores are right, and fall."""
    exact, classes = RETRIEVERS["exact"].retriever, query.classes
    _, ids = exact.search(state, dataclasses.replace(query, classes=dataclasses.replace(classes, normalized=False)), k)
    every_score, every_id = exact.search(state, query, classes.num_classes)
    position = jnp.argmax(every_id[:, None] == ids[..., None], axis=2)
    real = jnp.arange(k) < classes.num_valid
    scores, best = jax.lax.top_k(jnp.where(real, jnp.take_along_axis(every_score, position, 1), -jnp.inf), k)
    return scores, jnp.where(scores > -jnp.inf, jnp.take_along_axis(ids, best, 1), 0)


def _follows_to_the_last_row(state: Any, key: Any, row_ids: Any, rows: Any) -> Any:
    good = RETRIEVERS["ivf int8"].retriever
    # Of the two problems that are asked about, the one without padding has 21 rows; the other's fillers are 24.
    return good.follow(state, key, jnp.where(row_ids == 21, 20, row_ids), rows)


# What is planted, the laws that are asked, and what is said.
FAULTS = {
    "stale follow": (
        RETRIEVERS["lsh"].retriever._replace(follow=lambda state, key, ids, rows: state),
        "follow",
        "after follow, example .* finds",
    ),
    "rows of a normalised head stay as they were": (
        _follows_no_cosines(),
        "follow",
        "after follow, example . of a normalised head finds",
    ),
    "scores 2 % too large": (_finding(lambda scores, ids: (1.02 * scores, ids)), "scores", "its logit is"),
    "scores without biases": (RETRIEVERS["lsh"].retriever._replace(search=_without_biases), "scores", "its logit is"),
    "NaN without labels": (
        RETRIEVERS["lsh"].retriever._replace(search=_nan_without_labels),
        "found",
        "scores do not fall",
    ),
    "scores halved without labels": (
        RETRIEVERS["lsh"].retriever._replace(search=_halved_without_labels),
        "scores",
        "its logit is",
    ),
    "worst without labels": (
        RETRIEVERS["exact"].retriever._replace(search=_worst_without_labels),
        "recall",
        "of queries without labels, stated",
    ),
    "biases of its build": (_with_biases_of_its_build(), "scores", "its logit is"),
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
    "ranks by products": (
        RETRIEVERS["exact"].retriever._replace(search=_ranks_by_products),
        "recall",
        "of the index of a normalised head as built, stated is 0.9",
    ),
    "fillers in the last row": (
        RETRIEVERS["ivf int8"].retriever._replace(follow=_follows_to_the_last_row),
        "follow",
        "without padding rows, after follow, example .* finds",
    ),
    "state": (
        RETRIEVERS["exact"].retriever._replace(refresh=lambda state, key, classes: (jax.random.key(0),)),
        "follow",
        "refresh changed the state",
    ),
}

# Products and cosines share most of their best: exhaustive search finds all.
_RECALLS = {"ranks by products": 0.9}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    retriever, law, says = FAULTS[name]
    with pytest.raises(testing.LawBroken, match=rf"\({law}\): .*({says})"):
        testing.check_retriever(retriever, laws=[law], recall=_RECALLS.get(name, 0.5), seconds=600)


def test_a_refresh_that_learns_nothing_is_found() -> None:
    case = RETRIEVERS["ivf few seen"]
    stale = case.retriever._replace(refresh=lambda state, key, classes: state)
    with pytest.raises(testing.LawBroken, match=r"\(follow\): recall at 6 is .* after a refresh on other classes"):
        testing.check_retriever(stale, laws=["follow"], seconds=600, **case.told)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="got num_valid=5"):
        testing.check_retriever(samplers.exact_index(), num_valid=5)
