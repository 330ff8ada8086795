"""The laws of retrievers, as functions of a ``RetrieverBench``; ``RETRIEVER_LAWS`` is the table of them."""

import copy
import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from candax.base import Query, Retriever, State
from candax.cosines import unit
from candax.samplers import load_index, retrieved, save_index
from candax.testing.bench import Case
from candax.testing.broken import Law, LawBroken
from candax.testing.problems import make_classes, make_query
from candax.testing.program_laws import check_closure, check_cost

_NUM_QUERIES = 8


class RetrieverBench:
    """A retriever with an index, queries, and what exhaustive search answers; each function is compiled once."""

    def __init__(self, retriever: Retriever, k: int, recall: float, follows: bool, case: Case) -> None:
        self.retriever, self.k, self.recall, self.follows = retriever, k, recall, follows
        # For the laws in program_laws.
        self.sampler = retrieved(retriever, k)
        self.build, self.refresh, self.follow = (
            jax.jit(function) for function in (retriever.build, retriever.refresh, retriever.follow)
        )
        self._search = jax.jit(retriever.search, static_argnums=2)
        self._place(case)

    def _place(self, case: Case) -> None:
        self.case, self.classes = case, make_classes(case.num_valid, case.num_classes)
        self.query = make_query(jax.random.key(11), self.classes, _NUM_QUERIES)
        self.state = self.build(jax.random.key(0), self.classes)

    def without_padding(self) -> "RetrieverBench":
        """The same retriever on the valid classes alone."""
        other = copy.copy(self)
        for made in ("changed", "of_cosines"):
            other.__dict__.pop(made, None)
        other._place(dataclasses.replace(self.case, num_classes=self.case.num_valid))
        return other

    def search(self, state: State, query: Query, k: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Scores and ids."""
        k = self.k if k is None else k
        scores, ids = self._search(state, query, k)
        types = (scores.dtype, ids.dtype) == (jnp.float32, jnp.int32)
        if scores.shape != (_NUM_QUERIES, k) or ids.shape != scores.shape or not types:
            raise LawBroken(
                f"search returned scores {scores.dtype}{list(scores.shape)} and ids {ids.dtype}{list(ids.shape)} where "
                f"float32 and int32 of {[_NUM_QUERIES, k]} are expected"
            )
        return np.asarray(scores), np.asarray(ids)

    @functools.cached_property
    def changed(self) -> tuple[jax.Array, jax.Array, Query]:
        """Ids and rows that a step moves towards three of the queries, with a filler; the query over the new rows."""
        # The last of all rows keeps its vector: there a filler must not write, also if its id is clamped.
        last = min(self.case.num_valid - 1, self.case.num_classes - 2)
        ids = jnp.array([1, self.case.num_valid // 2, last, self.case.num_classes], jnp.int32)
        rows = 3 * unit(self.query.embeddings[:4]).at[3].set(jnp.nan)
        return ids, rows, over(self.query, vectors=self.classes.vectors.at[ids].set(rows, mode="drop"))

    @property
    def unlabelled(self) -> Query:
        """As serving asks: without labels."""
        return dataclasses.replace(self.query, labels=jnp.full_like(self.query.labels, -1))

    @functools.cached_property
    def of_cosines(self) -> tuple[State, Query]:
        """An index of a normalised head, and a query of it."""
        query = over(self.query, biases=None, normalized=True)
        query = dataclasses.replace(query, embeddings=unit(query.embeddings))
        return self.build(jax.random.key(0), query.classes), query


def over(query: Query, **parts: Any) -> Query:
    """The query over an output layer that differs in some parts."""
    return dataclasses.replace(query, classes=dataclasses.replace(query.classes, **parts))


def logits_of(query: Query) -> np.ndarray:
    """The logits of all classes, by the definition; -inf for padding rows."""
    classes, embeddings = query.classes, query.embeddings
    vectors = classes.vectors
    if classes.normalized:
        vectors, embeddings = unit(vectors), unit(embeddings)
    logits = np.asarray(embeddings, np.float64) @ np.asarray(vectors, np.float64).T
    logits = logits if classes.biases is None else logits + np.asarray(classes.biases)
    return np.where(np.arange(classes.num_classes) < int(classes.num_valid), logits, -np.inf)


def check_found(bench: RetrieverBench) -> None:
    """Ids are valid and distinct, scores fall, and slots without a class are marked; also of a normalised head."""
    # Padding has an embedding of 0.
    asked = dataclasses.replace(bench.unlabelled, embeddings=bench.query.embeddings.at[0].set(0.0))
    for state, query in ((bench.state, bench.query), (bench.state, asked), bench.of_cosines):
        for k in (bench.k, bench.case.num_classes + 1):
            scores, ids = bench.search(state, query, k)
            real, valid = scores > -np.inf, int(bench.classes.num_valid)
            if np.any(np.isnan(scores)) or np.any(scores[:, 1:] > scores[:, :-1]):
                raise LawBroken(f"scores do not fall from slot to slot (k = {k}): {scores[0]}")
            _none(real & ((ids < 0) | (ids >= valid)), ids, scores, f"is returned, of {valid} valid classes")
            _none(~real & (ids != 0), ids, scores, "stands in a slot without a class, where the id is 0")
            in_order = np.sort(np.where(real, ids, -1 - np.arange(k)), axis=1)
            repeats = np.concatenate([np.zeros((len(ids), 1), bool), np.diff(in_order, axis=1) == 0], axis=1)
            _none(repeats, in_order, scores, "is returned twice")


def check_scores(bench: RetrieverBench) -> None:
    """Scores are the head's logits now: with biases, of changed rows, and cosines if the head is normalised."""
    assert bench.classes.biases is not None
    trained = over(bench.query, biases=bench.classes.biases[::-1])
    cases = [(bench.state, query) for query in (bench.query, bench.unlabelled, bench.changed[2], trained)]
    for state, asked in (*cases, bench.of_cosines):
        scores, ids = bench.search(state, asked)
        wanted = np.take_along_axis(logits_of(asked), ids, axis=1)
        wrong = (scores > -np.inf) & ~np.isclose(scores, wanted, rtol=1e-4, atol=1e-4)
        if np.any(wrong):
            example, slot = np.argwhere(wrong)[0]
            head = ", a normalised head" if asked.classes.normalized else ""
            raise LawBroken(
                f"class {ids[example, slot]} has score {scores[example, slot]:.6g}, its logit is "
                f"{wanted[example, slot]:.6g} (example {example}{head})"
            )


def check_recall(bench: RetrieverBench) -> None:
    """The stated share of the best classes is found."""
    _recall(bench, bench.state, bench.query, "of the index as built")
    # What is found by labels alone finds nothing then.
    if np.any(bench.search(bench.state, bench.unlabelled)[0] > -np.inf):
        _recall(bench, bench.state, bench.unlabelled, "of queries without labels")
    _recall(bench, *bench.of_cosines, "of the index of a normalised head as built")


def check_follow(bench: RetrieverBench) -> None:
    """An index that follows a step finds what one built anew finds; any index has the stated recall after a refresh.

    Once more without padding rows: what a filler writes to the last row is of no consequence where that is padding.
    """
    _check_follow(bench)
    if bench.case.num_valid < bench.case.num_classes:
        try:
            _check_follow(bench.without_padding())
        except LawBroken as fault:
            raise LawBroken(f"without padding rows, {fault}") from None


def _check_follow(bench: RetrieverBench) -> None:
    ids, rows, query = bench.changed
    followed = bench.follow(bench.state, jax.random.key(5), ids, rows)
    refreshed = bench.refresh(followed, jax.random.key(0), query.classes)
    for name, state in (("follow", followed), ("refresh", refreshed)):
        if _described(state) != _described(bench.state):
            raise LawBroken(f"{name} changed the state: it was {_described(bench.state)}, it is {_described(state)}")
    if bench.follows:
        _check_followed(bench, followed, query, "")
        state, asked = bench.of_cosines
        state = bench.follow(state, jax.random.key(5), ids, rows)
        _check_followed(bench, state, over(asked, vectors=query.classes.vectors), " of a normalised head")
    _recall(bench, refreshed, query, "after a refresh")
    # Of these no old index knows much.
    other = make_classes(bench.case.num_valid, bench.case.num_classes, seed=1)
    refreshed = bench.refresh(followed, jax.random.key(0), other)
    query = dataclasses.replace(bench.query, classes=other)
    _recall(bench, refreshed, query, "after a refresh on other classes")


def _check_followed(bench: RetrieverBench, followed: State, query: Query, head: str) -> None:
    anew = bench.build(jax.random.key(0), query.classes)
    got, wanted = (bench.search(state, query, bench.case.num_classes + 1)[1] for state in (followed, anew))
    if np.any(got != wanted):
        example = np.argwhere(got != wanted)[0][0]
        raise LawBroken(
            f"after follow, example {example}{head} finds {got[example]}, in an index built anew {wanted[example]} "
            f"(the rows {bench.changed[0][:3]} had changed); if it follows at a refresh only, check it with "
            "follows=False"
        )


def check_shortlist(bench: RetrieverBench) -> None:
    """What ``grouped`` takes instead of a search: valid ids for any number of groups, the best of each among them."""
    shortlist = bench.retriever.shortlist
    if shortlist is None:
        return
    sizes, k = (1, 2, _NUM_QUERIES), bench.k

    def of_each(state: State, query: Query) -> list[tuple[jax.Array, jax.Array]]:
        return [shortlist(state, query, groups, k, k * _NUM_QUERIES // groups) for groups in sizes]

    found = jax.jit(of_each)
    ids, rows, query = bench.changed
    asked = [(bench.state, bench.query)]
    if bench.follows:
        asked.append((bench.follow(bench.state, jax.random.key(5), ids, rows), query))
    for state, query in asked:
        logits = logits_of(query)
        for groups, (scores, ids) in zip(sizes, found(state, query), strict=True):
            if scores.ndim != 2 or len(scores) != groups or ids.shape != scores.shape or ids.dtype != jnp.int32:
                raise LawBroken(
                    f"shortlist of {groups} groups returned scores of shape {list(scores.shape)} and ids {ids.dtype}"
                    f"{list(ids.shape)} where numbers and int32 of [{groups}, n] are expected"
                )
            _check_shortlist(bench, np.asarray(scores), np.asarray(ids), logits.reshape(groups, -1, logits.shape[1]))


def _check_shortlist(bench: RetrieverBench, scores: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> None:
    """Ids [G, n] against the logits [G, examples of a group, num_classes]."""
    groups, valid = len(ids), int(bench.classes.num_valid)
    if np.any(np.isnan(scores)):
        raise LawBroken(f"a score of a shortlist is NaN ({groups} groups)")
    real = scores > -np.inf
    _none(real & ((ids < 0) | (ids >= valid)), ids, scores, f"is in a shortlist, of {valid} valid classes", "group")
    # Half as many as are asked for, as scores may be estimates. What is among the best of a group's classes, by the
    # best example of each, is among the best of that example.
    best = np.argsort(-logits.max(axis=1), axis=1)[:, : (bench.k + 1) // 2]
    share = np.mean([np.isin(wanted, got[has]).mean() for wanted, got, has in zip(best, ids, real, strict=True)])
    if share < bench.recall:
        raise LawBroken(
            f"the shortlists of {groups} groups have {share:.3f} of the {best.shape[1]} best classes of a group, "
            f"stated is {bench.recall:.3f}"
        )


def check_files(bench: RetrieverBench) -> None:
    """A loaded index answers like the saved one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        save_index(path, bench.retriever, bench.state, bench.classes)
        _, state, classes = load_index(path, bench.retriever)
    assert classes is not None
    if _described(state) != _described(bench.state):
        raise LawBroken(f"the state was {_described(bench.state)}, loaded it is {_described(state)}")
    loaded = dataclasses.replace(bench.query, classes=dataclasses.replace(classes, counts=bench.classes.counts))
    for wanted, got in zip(bench.search(bench.state, bench.query), bench.search(state, loaded), strict=True):
        if np.any(wanted != got):
            raise LawBroken(f"the saved index finds {wanted[0]} for example 0, the loaded one {got[0]}")


def _recall(bench: RetrieverBench, state: State, query: Query, when: str) -> None:
    best = np.argsort(-logits_of(query), axis=1)[:, : bench.k]
    scores, ids = bench.search(state, query)
    ids = np.where(scores > -np.inf, ids, -1)
    found = np.mean([np.isin(wanted, got).mean() for wanted, got in zip(best, ids, strict=True)])
    if found < bench.recall:
        raise LawBroken(f"recall at {bench.k} is {found:.3f} {when}, stated is {bench.recall:.3f}")


def _described(state: State) -> Any:
    return jax.tree.structure(state), [f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(state)]


def _none(wrong: np.ndarray, ids: np.ndarray, scores: np.ndarray, what: str, of: str = "example") -> None:
    if np.any(wrong):
        row, slot = np.argwhere(wrong)[0]
        raise LawBroken(f"class {ids[row, slot]} {what} ({of} {row}, score {scores[row, slot]:.6g})")


RETRIEVER_LAWS: dict[str, Law] = {
    "found": Law(
        2,
        "search returns distinct valid ids in falling order of score; slots without a class have -inf and id 0",
        "repeats, padding rows, and k above the number of classes found",
        check_found,
    ),
    "scores": Law(
        0,
        "scores are logits of query.classes as they are now, biases included, cosines of a normalised head",
        "what scores the classes found; candax.samplers.common.scoring.logits_of does so for any head",
        check_scores,
    ),
    "recall": Law(
        0,
        "of the k best classes the stated share is found, by cosine if the head is normalised",
        "build and search",
        check_recall,
    ),
    "follow": Law(
        6,
        "follow and refresh keep structure, shapes and dtypes, and the changed rows are found, fillers change nothing, "
        "and a refresh learns of the classes given",
        "what the state holds of the old rows, and what follow does with ids >= num_classes",
        check_follow,
    ),
    "shortlist": Law(
        2,
        "a shortlist, where there is one, has valid ids of shape [groups, n], and the best of each group",
        "the number of groups, empty slots (score -inf) and what follow writes",
        check_shortlist,
    ),
    "files": Law(
        0, "a saved and loaded index answers alike", "settings, and shapes that depend on more than them", check_files
    ),
    "closure": Law(
        0, "functions hold static hyperparameters, never arrays", "move these arrays into the state", check_closure
    ),
    "cost": Law(
        5,
        "the scratch of a search and of a follow does not grow with num_classes",
        "operations on arrays of the size of the table, and gathers from a donated array after it was written",
        check_cost,
    ),
}
