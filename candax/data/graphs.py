"""Graphs as triples (head, relation, tail), from tab-separated files."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float32, Int32

from candax.checks import checked
from candax.data.headers import places_of
from candax.data.tab_separated import find_file, forms_beside, name_of, read_rows

Unknown: TypeAlias = Literal["keep", "drop", "error"]
_COLUMNS = ("head", "relation", "tail")
_SPLITS = ("train", "valid", "test")


class Triple(NamedTuple):
    """``head`` stands in ``relation`` to ``tail``."""

    head: str
    relation: str
    tail: str


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """Triples of ids, in three parts; every entity is a class.

    Args:
        name: what tables and pictures call it.
        entity_names: one name per entity, the most frequent of the training part first.
        relation_names: one name per relation.
        train: triples (head, relation, tail) to learn from.
        valid: triples to tune on; may be empty.
        test: triples to measure on.
        notes: what reading passed over, counted or left out, in sentences for the user.
    """

    name: str
    entity_names: tuple[str, ...]
    relation_names: tuple[str, ...]
    train: Int32[np.ndarray, "N 3"]
    valid: Int32[np.ndarray, "V 3"]
    test: Int32[np.ndarray, "M 3"]
    notes: tuple[str, ...] = ()

    @property
    def num_entities(self) -> int:
        """The number of entities, each of which is a class."""
        return len(self.entity_names)

    @property
    def num_relations(self) -> int:
        """The number of relations; each is asked in both directions, so there are twice as many kinds of question."""
        return len(self.relation_names)

    @functools.cached_property
    def counts(self) -> Float32[np.ndarray, "num_entities"]:
        """How often each entity is the answer to a question of the training part, heads and tails together."""
        ends = self.train[:, [0, 2]].ravel()
        return np.bincount(ends, minlength=self.num_entities).astype(np.float32)


@checked
def graph(
    path: str | os.PathLike[str],
    *,
    valid_share: float = 0.05,
    test_share: float = 0.05,
    unknown: Unknown = "error",
    name: str | None = None,
) -> Graph:
    r"""Reads a graph: a folder with ``train.tsv``, ``test.tsv`` and perhaps ``valid.tsv``, or one file to be split.

    Lines are ``head<tab>relation<tab>tail``, text in UTF-8, plain or .gz, .bz2, .xz, .zst. A folder may hold one file
    ``triples.tsv`` instead, which is split as ``graph_of`` says. A first line such as ``head<tab>relation<tab>tail`` or
    ``subject<tab>predicate<tab>object`` names the columns and is passed over. Names count as they are written: those
    that differ in their Unicode form alone are two, which a note says.

    Args:
        path: file or folder.
        valid_share: the share to tune on, where one file is split.
        test_share: the share to measure on, where one file is split.
        unknown: what to do about entities and relations of ``valid.tsv`` and ``test.tsv`` that ``train.tsv`` does not
            have, of which nothing can be learned. "error": raise one; "keep": give them ids and score them by untrained
            rows, as in most published tables; "drop": leave such triples out.
        name: of the graph; None: that of the file or folder.

    Returns:
        The graph; a triple that occurs several times in a file counts once.

    Raises:
        ValueError: with file and line number, for a file that is not text or, but for ``valid.tsv``, empty, a line
            that does not have three columns, or an unknown entity or relation; also for a folder without the files.
        OSError: if a file cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "train.tsv").write_text("cat\tis\tanimal\ndog\tis\tanimal\n")
        ...     _ = Path(folder, "test.tsv").write_text("cat\tis\tdog\n")
        ...     small = graph(folder)
        >>> small.entity_names, small.test.tolist()
        (('animal', 'cat', 'dog'), [[1, 0, 2]])
    """
    path = Path(path)
    name = name or name_of(path)
    files = {stem: find_file(path, stem) for stem in (*_SPLITS, "triples")} if path.is_dir() else {"triples": path}
    whole, train_file, test_file = files["triples"], files.get("train"), files.get("test")
    notes: list[str] = []
    # A part beside it belongs to a split whose other parts are missing or misnamed.
    if whole is not None and not any(map(files.get, _SPLITS)):
        triples = [triple for _, triple in _read(whole, notes)]
        return _noted(graph_of(name, triples, valid_share=valid_share, test_share=test_share), notes)
    if train_file is None or test_file is None:
        raise ValueError(f"expected train.tsv and test.tsv, or triples.tsv, in {path}; a file is missing.")
    parts = {"train": [triple for _, triple in _read(train_file, notes)]}
    training = set(parts["train"])
    entities = {end for triple in training for end in (triple.head, triple.tail)}
    relations = {triple.relation for triple in training}
    for stem in ("valid", "test"):
        source = files[stem]
        parts[stem] = []
        strange = 0
        for number, triple in () if source is None else _read(source, notes, empty=stem == "valid"):
            missing = [end for end in (triple.head, triple.tail) if end not in entities]
            missing += [triple.relation] if triple.relation not in relations else []
            if missing and unknown == "error":
                raise ValueError(
                    f"{source}:{number}: {missing[0]!r} is not in {train_file.name}, so nothing can be learned of it. "
                    'Say "keep" to rank it by what it starts with, or "drop" to leave such triples out.'
                )
            strange += bool(missing)
            if not missing or unknown == "keep":
                parts[stem].append(triple)
        if source is not None:
            _note(
                notes,
                source,
                strange,
                f"with an entity or relation that {train_file.name} has not, "
                + ("kept and ranked by untrained rows" if unknown == "keep" else "left out"),
            )
            _note(notes, source, sum(triple in training for triple in set(parts[stem])), f"of {train_file.name} too")
    return _noted(_with_ids(name, parts), notes)


def _noted(found: Graph, notes: list[str]) -> Graph:
    forms = forms_beside(entities=found.entity_names, relations=found.relation_names)
    return dataclasses.replace(found, notes=(*notes, *forms))


def _read(path: Path, notes: list[str], *, empty: bool = False) -> Iterator[tuple[int, Triple]]:
    """The triples of a file, each once, with the numbers of their lines."""
    seen: set[Triple] = set()
    rows = last = headers = 0
    places = None
    for number, fields in read_rows(path, _COLUMNS, empty=empty):
        if not rows + headers and (places := places_of(fields, _COLUMNS)) is not None:
            notes.append(f"{path.name}:{number}: taken for names of columns: {', '.join(fields)}")
            headers = 1
            continue
        triple = Triple(*(fields if places is None else (fields[place] for place in places)))
        rows, last = rows + 1, number
        if triple not in seen:
            seen.add(triple)
            yield number, triple
    _note(notes, path, rows - len(seen), "that stand there before, counted once")
    if last > rows + headers:
        notes.append(f"{path.name}: {last - rows - headers} empty lines passed over")


def _note(notes: list[str], path: Path, number: int, what: str) -> None:
    if number:
        notes.append(f"{path.name}: {number} triples {what}")


@checked
def graph_of(name: str, triples: Iterable[Triple], *, valid_share: float = 0.05, test_share: float = 0.05) -> Graph:
    """Makes a graph of triples, split so that the test part cannot be read off the training part.

    All triples between the same two entities, in either direction, are in the same part, chosen by a hash of the two
    names: otherwise the other direction of a symmetric or inverse relation would give answers away. A triple with an
    entity or relation that no training triple has goes to the training part, with all triples of its pair.

    Args:
        name: of the graph.
        triples: any; repeated ones count once.
        valid_share: about the share of pairs of entities to tune on.
        test_share: about the share of pairs of entities to measure on.

    Returns:
        The graph; giving the same triples in another order changes only the order within its parts.

    Raises:
        ValueError: without triples, for parts of them that are no texts, or shares that leave nothing for training.

    Example:
        >>> both = [Triple("hot", "opposite", "cold"), Triple("cold", "opposite", "hot")]
        >>> len(graph_of("tiny", both).train)
        2
    """
    if not (valid_share >= 0 and test_share >= 0 and valid_share + test_share < 1):
        raise ValueError(f"expected shares >= 0 with a sum below 1, got {valid_share} and {test_share}.")
    every = list(dict.fromkeys(triples))
    if not every:
        raise ValueError(f"{name}: expected triples, got none.")
    if strange := [triple for triple in every if not all(isinstance(part, str) for part in triple)]:
        raise ValueError(f"{name}: expected triples of three texts, got {tuple(strange[0])}. Numbers go in as texts.")
    parts: dict[str, list[Triple]] = {which: [] for which in _SPLITS}
    for triple in every:
        draw = _fraction("\t".join(sorted((triple.head, triple.tail))))
        which = "test" if draw < test_share else "valid" if draw < test_share + valid_share else "train"
        parts[which].append(triple)
    # Whole pairs again: the other triples between the two entities must not stay behind.
    entities = {end for triple in parts["train"] for end in (triple.head, triple.tail)}
    relations = {triple.relation for triple in parts["train"]}
    moved = {
        frozenset((triple.head, triple.tail))
        for which in ("valid", "test")
        for triple in parts[which]
        if not {triple.head, triple.tail} <= entities or triple.relation not in relations
    }
    for which in ("valid", "test"):
        parts["train"] += [triple for triple in parts[which] if frozenset((triple.head, triple.tail)) in moved]
        parts[which] = [triple for triple in parts[which] if frozenset((triple.head, triple.tail)) not in moved]
    return _with_ids(name, parts)


def _with_ids(name: str, parts: dict[str, list[Triple]]) -> Graph:
    every = [triple for which in _SPLITS for triple in dict.fromkeys(parts[which])]
    counts = dict.fromkeys((end for triple in every for end in (triple.head, triple.tail)), 0)
    for triple in dict.fromkeys(parts["train"]):
        counts[triple.head] += 1
        counts[triple.tail] += 1
    entities = sorted(counts, key=lambda entity: (-counts[entity], entity))
    relations = sorted({triple.relation for triple in every})
    entity_ids = {entity: i for i, entity in enumerate(entities)}
    relation_ids = {relation: i for i, relation in enumerate(relations)}

    def ids(which: str) -> Int32[np.ndarray, "N 3"]:
        rows = [(entity_ids[h], relation_ids[r], entity_ids[t]) for h, r, t in dict.fromkeys(parts[which])]
        return np.array(rows, np.int32).reshape(-1, 3)

    train, valid, test = map(ids, _SPLITS)
    return Graph(name, tuple(entities), tuple(relations), train, valid, test)


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
