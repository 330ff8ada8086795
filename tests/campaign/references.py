"""Texts in the formats that are read, and what they say, by readers as plain as can be."""

import codecs
from typing import Any

import numpy as np

EXAMPLES = "12 9 6\n" + "".join(
    f"{i % 6},{(i * 5 + 1) % 6} {i % 9}:{0.5 + i} {(i + 3) % 9}:1\n"
    if i % 6 != (i * 5 + 1) % 6
    else f"{i % 6} {i % 9}:2\n"
    for i in range(12)
)
LABELS = "".join(f"{i % 7} {(3 * i + 1) % 11}\n" for i in range(20))
TRIPLES = "".join(f"e{i}\tr{i % 3}\te{(i * 7 + 2) % 30}\n" for i in range(30))
SEQUENCES = "".join(f"user{u} {' '.join(f'item{(u * i + i) % 11}' for i in range(1, 6))}\n" for u in range(12))
FEATURES = "id\tname\tprice\n" + "".join(f"item{i}\tword{i % 3} word{i % 4}\t{i * 0.5}\n" for i in range(12))
QUESTIONS = "".join(
    f"e{i}\tr{i % 3}\n" if i % 3 == 0 else f"e{i}\tr{i % 3}\t?\n" if i % 3 == 1 else f"?\tr{i % 3}\te{i}\n"
    for i in range(30)
)

LANGUAGE = "".join(f"{' '.join(f'w{(u * i + i) % 7}' for i in range(1, 6))}\n" for u in range(24))


def examples(content: bytes) -> Any:
    """Shapes, and for each example its features by id and its labels in order."""
    first, *rest = content.removeprefix(codecs.BOM_UTF8).decode("ascii").split("\n")
    number, features, labels = (int(part) for part in first.split())
    lines = rest[:number]
    assert len(lines) == number
    assert not any(line.strip() for line in rest[number:])
    rows = []
    for line in lines:
        of_labels, *of_features = line.rstrip("\r").split(" ") if line else [""]
        ids = sorted(int(part) for part in of_labels.split(",")) if of_labels else []
        pairs = [part.split(":") for part in of_features if part]
        values = {int(feature): float(np.float32(value)) for feature, value in pairs}
        assert len(values) == len(pairs)
        assert len(set(ids)) == len(ids)
        assert all(0 <= i < labels for i in ids)
        assert all(0 <= f < features for f in values)
        rows.append((values, ids))
    return ((number, features), (number, labels)), rows


def label_counts(content: bytes) -> Any:
    """How often each label is there."""
    found = [int(part) for line in _lines(content) for part in line.replace(",", " ").split()]
    assert min(found) >= 0
    counts = [0.0] * (max(found) + 1)
    for label in found:
        counts[label] += 1
    assert len(counts) > 1
    return counts


def triples(content: bytes) -> Any:
    """All triples, each once."""
    lines = [line for line in _lines(content) if line]
    found = {tuple(line.split("\t")) for line in lines}
    assert all(len(triple) == 3 and all(triple) for triple in found)
    return sorted(found)


def sequences(content: bytes) -> Any:
    """The items of all users, in an order that does not depend on the users'."""
    found: dict[str, list[str]] = {}
    lines = [line for line in _lines(content) if line.strip()]
    # Such a file is one of "user,item" lines, which the lines that were not damaged are not.
    assert "," not in lines[0]
    for line in lines:
        user, *items = line.split()
        assert items
        assert user not in found
        found[user] = items
    return sorted(found.values())


def features(content: bytes) -> Any:
    """The header and the columns of each id."""
    header, *rows = [line.split("\t") for line in _lines(content) if line.strip()]
    assert len(header) > 1
    assert all(len(row) == len(header) for row in rows)
    assert len({row[0] for row in rows}) == len(rows)
    return header, {name: fields for name, *fields in rows}


def histories(content: bytes) -> Any:
    """The users and their items, in order."""
    lines = [line for line in _lines(content) if line.strip()]
    # Such a file is one of "user,item" lines, which the lines that were not damaged are not.
    assert "," not in lines[0]
    assert "\t" not in lines[0]
    found = [line.split() for line in lines]
    assert all(len(fields) > 1 for fields in found)
    return [[user, items] for user, *items in found]


def questions(content: bytes) -> Any:
    """What is asked, by an entity and a relation, and whether it is for heads."""
    lines = [line.split("\t") for line in _lines(content) if line.strip()]
    assert lines
    found = []
    for fields in lines:
        head, relation, tail = fields if len(fields) == 3 else [*fields, "?"]
        assert all((head, relation, tail))
        assert (head == "?") != (tail == "?")
        assert relation != "?"
        entity = tail if head == "?" else head
        found.append([f"{head} {relation} {tail}", entity, relation, head == "?"])
    return found


def language(content: bytes) -> Any:
    """The words of all lines and their ends, in order, with those that come once in training as <unk>."""
    texts = _lines(content)
    lines = [[*line.split(), "<eos>"] for line in (texts if texts[-1] else texts[:-1])]
    held_out = max(1, round(len(lines) / 20))
    train = [word for line in lines[: -2 * held_out] for word in line]
    known = {word for word in train if train.count(word) > 1 or word == "<eos>"}
    if len(known) < len(set(train)):
        known.add("<unk>")
    assert len(known) > 2
    return [word if word in known else "<unk>" for line in lines for word in line]


def vectors(content: bytes) -> Any:
    """Vectors by word."""
    first, *rest = content.decode("utf-8-sig").split("\n")
    number, dim = (int(part) for part in first.split())
    lines = [line for line in rest if line]
    found = {}
    for line in lines:
        word, *numbers = line.rstrip().split(" ")
        assert len(numbers) == dim
        assert word not in found
        found[word] = [float(np.float32(part)) for part in numbers]
    assert len(found) == number
    return found


def _lines(content: bytes) -> list[str]:
    return [line.removesuffix("\r") for line in content.decode("utf-8-sig").split("\n")]
