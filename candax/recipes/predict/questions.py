"""Questions to a graph, with parts separated by tabs, and the entities that answer them."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from candax.data.headers import places_of
from candax.recipes.links.predictor import LinkPredictor
from candax.recipes.predict.lines import Answer, Source, answered, in_batches

_ASKED = "?"
_EXPECTED = "head<tab>relation, head<tab>relation<tab>? or ?<tab>relation<tab>tail"


class Question(NamedTuple):
    """What is asked: the tails of a head, or the heads of a tail."""

    text: str
    entity: str
    relation: str
    for_heads: bool


def answers(
    found: LinkPredictor, source: Source, k: int, notes: Counter[str], *, exclude_known: bool = False
) -> Iterator[list[Answer]]:
    """The entities that complete each question, likeliest first; see ``questions`` for the lines.

    A question with an entity or a relation that the run does not know has no answer, and is counted. The output shows
    a question as its parts with spaces between them.

    Raises:
        ValueError: with file and line, for lines of another kind.
    """
    entities = {name: number for number, name in enumerate(found.entities)}
    relations = {name: number for number, name in enumerate(found.relations)}

    def is_known(one: Question) -> bool:
        return one.entity in entities and one.relation in relations

    for batch in in_batches(questions(source, notes, is_known)):
        known = list(map(is_known, batch))
        notes["questions of an entity or relation unknown to the run, left without an answer"] += known.count(False)
        asked = [
            (entities[one.entity], relations[one.relation] + one.for_heads * len(relations))
            for one, is_known in zip(batch, known, strict=True)
            if is_known
        ]
        best = found.best(asked, k, exclude_known=exclude_known)
        yield answered((one.text for one in batch), best.ids, best.scores, found.entities, known)


def questions(source: Source, notes: Counter[str], is_known: Callable[[Question], bool]) -> Iterator[Question]:
    """Reads ``head<tab>relation``, ``head<tab>relation<tab>?`` or ``?<tab>relation<tab>tail`` lines.

    A first line that names the columns, such as ``head<tab>relation<tab>tail``, is noted and passed over, unless it is
    a question of an entity and a relation that are ``is_known``, such as ``h<tab>r``.

    Raises:
        ValueError: with file and line, for lines of another kind; where there is no question.
    """
    is_first, is_empty = True, True
    for number, line in source.texts():
        fields = line.split("\t")
        question = _question(fields)
        is_header = is_first and places_of(fields, ("head", "relation"), ("tail",)) is not None
        is_first = False
        if is_header and (question is None or not is_known(question)):
            notes["lines that name columns"] += 1
            continue
        if question is None:
            raise source.wrong(number, _EXPECTED, line)
        is_empty = False
        yield question
    if is_empty:
        raise source.empty()


def _question(fields: list[str]) -> Question | None:
    """The question of a line's fields; None where they are none."""
    whole = fields if len(fields) != 2 else [*fields, _ASKED]
    if len(whole) != 3 or not all(whole) or (whole[0] == _ASKED) == (whole[2] == _ASKED) or whole[1] == _ASKED:
        return None
    head, relation, tail = whole
    for_heads = head == _ASKED
    return Question(" ".join(whole), tail if for_heads else head, relation, for_heads)
