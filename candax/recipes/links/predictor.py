"""Link prediction with the usual interface: `fit(triples)`, `score(h, r, t)` and `complete(h, r, k)`."""

import dataclasses
import functools
import reprlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from candax import data, models
from candax.checks import check_positive, checked
from candax.recipes.common import finished
from candax.recipes.common.options import with_options
from candax.recipes.common.search import AT_A_TIME, Best, Searching, padded, power_of_two
from candax.recipes.links.building import link_model_of, save_model, training_of
from candax.recipes.links.command import METHODS, LinksSettings, MethodName
from candax.training import embed

# A name, or several.
Names: TypeAlias = str | Sequence[str] | Shaped[np.ndarray, " n"]


class LinkPredictor(Searching):
    """Which entity completes a triple: ComplEx and others, as ``candax links`` trains them.

    Args:
        method: "complex", "distmult", "transe", "rotate", or "full_softmax": ComplEx with all entities as candidates.
        options: of ``candax links``, by name: ``dim``, ``epochs``, ``learning_rate``, ``regularisation``, ``dropout``,
            ``num_sampled``, ``batch_size``, ``seed`` and others; where not given, as the method has them.

    Attributes:
        entities: their names, the most frequent first; set by training or loading.
        relations: their names.

    Raises:
        ValueError: for an unknown method or option, or values out of range.

    Example:
        >>> cities = [("Paris", "France"), ("Rome", "Italy"), ("Oslo", "Norway")]
        >>> triples = [(city, "capital of", country) for city, country in cities]
        >>> model = LinkPredictor(dim=16, epochs=60, batch_size=2, scale=0.1).fit(triples)
        >>> model.complete("Rome", "capital of", 1)[0]
        ['Italy']
        >>> model.score("Rome", "capital of", "Italy") > model.score("Rome", "capital of", "Norway")
        True
    """

    @checked
    def __init__(self, method: MethodName = "complex", **options: Any) -> None:
        usual = {**METHODS[method].defaults, **({"loss": None} if METHODS[method].full else {})}
        self.method: MethodName = method
        self.settings = with_options(LinksSettings, LinksSettings.OPTIONS, {**usual, **options})
        if not METHODS[method].takes(self.settings.dim):
            raise ValueError(f"expected an even dim for {method}, a complex number takes two, got {self.settings.dim}.")
        self._graph: data.Graph | None = None

    @checked
    def fit(self, triples: Iterable[Any]) -> "LinkPredictor":
        """Trains anew, on all triples and in both directions.

        Args:
            triples: (head, relation, tail) by their names, which are texts.

        Returns:
            This predictor.

        Raises:
            ValueError: without triples, or for one that does not have three parts.
        """
        graph = _graph(triples)
        size = max(2, min(self.settings.batch_size, 2 * len(graph.train)) // 2 * 2)
        number = min(self.settings.num_sampled, graph.num_entities)
        settings = dataclasses.replace(self.settings, batch_size=size, num_sampled=number)
        training, pair = training_of(settings, METHODS[self.method], graph, settings.seed, progress=False)
        model, _ = training.train(*pair, "", None)
        # A model as it is loaded: without a sampler and what that remembers, which could not be pickled.
        bare = link_model_of(self.settings, METHODS[self.method], graph)
        self.model = finished.into(bare, finished.weights_of(model), "the model")
        self._set(graph)
        return self

    @checked
    def score(self, head: Names, relation: Names, tail: Names) -> float | Float[np.ndarray, " n"]:
        """How likely triples are, by the model: the logit of the tail after the question (head, relation, ?).

        Args:
            head: an entity, or a list or an array of them.
            relation: a relation, or several.
            tail: an entity, or several.

        Returns:
            A number, or where one is a list an array of numbers. Only scores of the same question can be compared.

        Raises:
            ValueError: for an entity or a relation that the model does not know.
        """
        sizes = [len(part) for part in (head, relation, tail) if not isinstance(part, str)]
        lists = [[part] if isinstance(part, str) else part for part in (head, relation, tail)]
        number = max(sizes, default=1)
        heads, relations, tails = (list(part) * number if len(part) == 1 else list(part) for part in lists)
        if not len(heads) == len(relations) == len(tails):
            got = [len(part) for part in lists]
            raise ValueError(f"expected lists of one length, got {got[0]}, {got[1]} and {got[2]}.")
        ids = [self._entity(tail) for tail in tails]
        embeddings = self.embedded([self._question(h, r, None) for h, r in zip(heads, relations, strict=True)])
        vectors = np.asarray(self.search.classes.vectors[jnp.asarray(ids, jnp.int32)])
        scores = np.einsum("bd,bd->b", embeddings, vectors)
        return scores if sizes else float(scores[0])

    @checked
    def complete(
        self, head: str | None, relation: str, k: int = 10, *, tail: str | None = None, exclude_known: bool = False
    ) -> tuple[list[str], list[float]]:
        """The entities that complete (head, relation, ?), or with ``head=None`` (?, relation, tail), likeliest first.

        Args:
            head: an entity; None: heads of ``tail`` are asked for.
            relation: a relation.
            k: how many.
            tail: see ``head``.
            exclude_known: whether answers that were trained on are left out.

        Returns:
            Entities and their scores.

        Raises:
            ValueError: for an entity or a relation that the model does not know.
        """
        if (head is None) == (tail is None):
            raise ValueError(f"expected a head or a tail, whose other end is asked for, got {head!r} and {tail!r}.")
        best = self.best([self._question(head, relation, tail)], k, exclude_known=exclude_known)
        kept = best.ids[0] >= 0
        return [self.entities[i] for i in best.ids[0][kept].tolist()], best.scores[0][kept].tolist()

    def best(self, questions: Sequence[tuple[int, int]], k: int, *, exclude_known: bool = False) -> Best:
        """The best answers to (entity, relation) numbers; a relation plus the number of relations asks for heads."""
        check_positive("k", k)
        exclude = None
        if exclude_known and questions:
            asked = np.array(questions, np.int64)
            known = self._known(asked[:, 0], asked[:, 1])
            sizes = np.bincount(known.rows, minlength=len(asked))
            exclude = padded(np.split(known.ids, np.cumsum(sizes)[:-1]))
        return self.search.best(self.embedded(questions), k, exclude)

    def embedded(self, questions: Sequence[tuple[int, int]]) -> Float[np.ndarray, "n dim"]:
        """The embeddings of questions, which the head scores."""
        model: models.Classifier = self._trained().model
        asked: Int[np.ndarray, "n 3"] = np.full((len(questions), 3), -1, np.int32)
        if questions:
            asked[:, :2] = questions
        size = min(AT_A_TIME, power_of_two(len(questions)))
        parts = [np.asarray(embed(model, batch)) for batch in data.questions_in_order(asked, size)]
        dim = self.search.classes.vectors.shape[1]
        return np.concatenate([np.zeros((0, dim), np.float32), *parts])[: len(questions)]

    @checked
    def save(self, folder: str | Path) -> Path:
        """Writes the trained model into a folder, for ``candax.recipes.load`` and `candax predict`.

        Returns:
            The path of the file.
        """
        graph = self._trained()._graph
        assert graph is not None
        return save_model(Path(folder), self.method, self.settings.options, graph, self.model)

    @classmethod
    def of(cls, saved: finished.Finished) -> "LinkPredictor":
        """The predictor that ``save`` or `candax links` has saved."""
        found = cls(saved.about["method"], **saved.options)
        entities, relations = (tuple(saved.names[what]) for what in ("entities", "relations"))
        nothing = np.zeros((0, 3), np.int32)
        graph = data.Graph(saved.about["data"], entities, relations, saved.extra["triples"], nothing, nothing)
        bare = link_model_of(found.settings, METHODS[found.method], graph)
        found.model = finished.into(bare, saved.weights, str(saved.path))
        found._set(graph)
        return found

    @functools.cached_property
    def _known(self) -> data.KnownAnswers:
        graph = self._trained()._graph
        assert graph is not None
        return data.KnownAnswers(graph)

    def _set(self, graph: data.Graph) -> None:
        for made in ("search", "_known"):
            self.__dict__.pop(made, None)
        self._graph, self.entities, self.relations = graph, graph.entity_names, graph.relation_names
        self._entities: dict[str, int] = {name: number for number, name in enumerate(self.entities)}
        self._relations: dict[str, int] = {name: number for number, name in enumerate(self.relations)}

    def _trained(self) -> "LinkPredictor":
        if self._graph is None:
            raise ValueError("expected a predictor that was trained, got a new one: call fit(triples) first.")
        return self

    def _question(self, head: str | None, relation: str, tail: str | None) -> tuple[int, int]:
        kind = self._trained()._relations.get(relation)
        if kind is None:
            raise ValueError(f"expected one of the {len(self.relations):,} relations, got {relation!r}.")
        if head is None:
            return self._entity(tail), kind + len(self.relations)
        return self._entity(head), kind

    def _entity(self, name: str | None) -> int:
        number = None if name is None else self._trained()._entities.get(name)
        if number is None:
            raise ValueError(f"expected one of the {len(self.entities):,} entities, got {name!r}.")
        return number


def _graph(triples: Iterable[Any]) -> data.Graph:
    """A graph of the triples, all of them for training."""
    every: list[data.Triple] = []
    for number, triple in enumerate(triples):
        parts = tuple(triple) if isinstance(triple, Iterable) and not isinstance(triple, str) else ()
        if len(parts) != 3 or not all(isinstance(part, str) for part in parts):
            raise ValueError(
                f"expected triples (head, relation, tail) of texts, got {reprlib.repr(triple)} as number {number}. "
                "Ids become texts by str(id)."
            )
        every.append(data.Triple(*parts))
    return data.graph_of("triples", every, valid_share=0.0, test_share=0.0)
