"""Examples of sparse features, in the Extreme Classification Repository's text format, and their likeliest classes."""

import codecs
import itertools
import re
from collections import Counter
from collections.abc import Iterator

from candax.data.examples import from_counts
from candax.data.xml_format import MAX_ID, Header, parse_block, parse_header
from candax.recipes.extreme.classifier import ExtremeClassifier
from candax.recipes.predict.lines import Answer, Source, answered, in_batches

_HEADER = re.compile(rb"\s*\d+\s+\d+\s+\d+\s*")


def answers(
    found: ExtremeClassifier, source: Source, k: int, notes: Counter[str], *, ids: bool = False
) -> Iterator[list[Answer]]:
    """The likeliest classes of each line, ``label,label id:value id:value``; labels are not looked at.

    The first line may be ``points features labels``; then there must be as many examples as it says. Examples are
    numbered from 0. Those without features get the classes of largest bias, the most frequent ones, and are counted.

    Raises:
        ValueError: with file and line, for lines of another kind or other features than the run's.
    """
    names = range(len(found.classes_)) if ids else found.classes_.tolist()
    lines = _examples(source, found.n_features_in_)
    bounds = Header(0, found.n_features_in_, MAX_ID)
    number = 0
    for batch in in_batches(lines):
        text = b"\n".join(line for _, line in batch) + b"\n"
        block = parse_block(text, bounds, str(source.path), batch[0][0])
        features = from_counts(block.feature_values, block.feature_ids, block.feature_counts, found.n_features_in_)
        if empty := int((block.feature_counts == 0).sum()):
            notes["examples without features, answered by how frequent classes are"] += empty
        probabilities, best = found.fitted_.top_k(features, k)
        yield answered(range(number, number + len(best)), best, probabilities, names)
        number += len(best)


def _examples(source: Source, num_features: int) -> Iterator[tuple[int, bytes]]:
    """The lines that hold an example; a header is checked and taken away."""
    lines = ((number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line) for number, line in source.lines)
    # Empty lines are examples without features, but not if there is nothing else.
    beginning: list[tuple[int, bytes]] = []
    for one in lines:
        beginning.append(one)
        if one[1].strip():
            break
    else:
        raise source.empty()
    points = None
    if _HEADER.fullmatch(beginning[0][1]):
        try:
            header = parse_header(beginning.pop(0)[1])
        except ValueError as error:
            raise ValueError(f"{source.path}:1: {error}") from None
        if header.features != num_features:
            raise ValueError(
                f"{source.path}:1: expected {num_features} features, as the run has them, got a header of "
                f"{header.features}: the input is of other data."
            )
        points = header.points
    count = last = 0
    for number, line in itertools.chain(beginning, lines):
        last = number
        if points is None or count < points:
            count += 1
            yield number, line
        elif line.strip():
            raise ValueError(f"{source.path}:{number}: expected {points} examples, as the header states; got more.")
    if points is not None and count < points:
        raise ValueError(
            f"{source.path}:{last or 1}: expected {points} examples, as the header states, got {count} before the end."
        )
    if points == 0:
        raise source.empty()
