import re

import numpy as np
import pytest
from data_helpers import NUM_CLASSES, NUM_FEATURES, expected, line_text, lines
from hypothesis import given, settings, strategies as st

from candax.data.xml_format import Block, Header, parse_block, parse_header, parse_line_by_line, parse_quickly

HEADER = Header(0, NUM_FEATURES, NUM_CLASSES)
FIRST_LINE = 2

# Each of these, put into an example as a token, is a fault, and the error must say so in these words.
BAD_FEATURES = {
    f"{NUM_FEATURES}:1": "feature id from 0 to 29",
    "99999999999999999999:1": "feature id from 0 to 29",
    "-1:1": "feature id from 0 to 29",
    "1:nan": "finite",
    "1:-inf": "finite",
    "1:1e39": "finite",
    "1:-1e400": "finite",
    "1:": "a number",
    "1:x": "a number",
    "1:1e": "a number",
    "1:1_0": "a number",
    "1:0x1": "a number",
    "1:--1": "a number",
    "1:1.2.3": "a number",
    "1:1:1": "a number",
    "1:2,3:4": "a number",
    ":1": "an integer",
    "1.0:1": "an integer",
    "+1:1": "an integer",
    "a:1": "an integer",
    "1": "id:value",
    "1,2": "id:value",
    "\t1": "id:value",
    "\u0661:1": "an integer",
    "7:1 7:2": "feature 7 twice",
}
BAD_LABELS = {
    f"{NUM_CLASSES}": "label id from 0 to 19",
    "-1": "label id from 0 to 19",
    "-0": "label id from 0 to 19",
    "12345678901": "label id from 0 to 19",
    "": "an integer",
    "x": "an integer",
    "1.5": "an integer",
    "1\t": "an integer",
    "3:1": "or a space for no labels",
}


def same(a: Block, b: Block) -> bool:
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@given(st.lists(lines, min_size=1, max_size=8))
def test_both_parsers_read_what_was_written(content: list) -> None:
    text = "".join(line_text(line) + "\n" for line in content).encode()
    slow = parse_line_by_line(text, HEADER, "f", FIRST_LINE)
    quick = parse_quickly(text, HEADER)
    examples = expected(content, NUM_FEATURES, NUM_CLASSES)
    assert same(slow, parse_block(text, HEADER, "f", FIRST_LINE))
    np.testing.assert_array_equal(slow.label_ids, examples.labels.indices)
    np.testing.assert_array_equal(slow.label_counts, np.diff(examples.labels.indptr))
    np.testing.assert_array_equal(slow.feature_ids, examples.features.indices)
    np.testing.assert_array_equal(slow.feature_values, examples.features.data)
    np.testing.assert_array_equal(slow.feature_counts, np.diff(examples.features.indptr))
    long_token = max((len(value) for _, features in content for _, value in features), default=0) > 32
    assert quick is None if long_token else quick is not None and same(quick, slow)


@settings(max_examples=300)
@given(st.text(alphabet="0123 ,:.-+e\n", max_size=30).map(lambda text: (text + "\n").encode()))
def test_quick_parser_takes_nothing_that_the_slow_one_refuses(text: bytes) -> None:
    quick = parse_quickly(text, HEADER)
    try:
        slow = parse_line_by_line(text, HEADER, "f", FIRST_LINE)
    except ValueError:
        assert quick is None
    else:
        # The quick one may give up where an id is long.
        assert quick is None or same(quick, slow)
        assert quick is not None or re.search(rb"[0-9]{19}", text)


@pytest.mark.parametrize(("bad", "message"), BAD_FEATURES.items())
@settings(max_examples=10)
@given(st.lists(lines, min_size=1, max_size=6), st.data())
def test_faulty_features_are_named_with_their_line(bad: str, message: str, content: list, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(content) - 1))
    # Ids 1 and 7 are free for the fault.
    content = [(labels, [pair for pair in features if pair[0] not in (1, 7)]) for labels, features in content]
    texts = [line_text(line) for line in content]
    tokens = texts[number].split(" ")
    tokens.insert(data.draw(st.integers(1, len(tokens))), bad)
    texts[number] = " ".join(tokens)
    refuse(texts, number, message)


@pytest.mark.parametrize(("bad", "message"), BAD_LABELS.items())
@settings(max_examples=10)
@given(st.lists(lines, min_size=1, max_size=6), st.data())
def test_faulty_labels_are_named_with_their_line(bad: str, message: str, content: list, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(content) - 1))
    labels = list(map(str, content[number][0])) or ["2"]
    labels.insert(data.draw(st.integers(0, len(labels))), bad)
    texts = [line_text(line) for line in content]
    texts[number] = ",".join(labels) + " " + texts[number].partition(" ")[2]
    refuse(texts, number, message)


@settings(max_examples=20)
@given(st.lists(lines, min_size=1, max_size=6), st.data())
def test_a_label_twice_is_named_with_its_line(content: list, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(content) - 1))
    labels, features = content[number]
    twice = data.draw(st.sampled_from(labels)) if labels else 4
    content[number] = ([*labels, twice] if labels else [twice, twice], features)
    refuse([line_text(line) for line in content], number, f"label {twice} twice")


def refuse(texts: list[str], number: int, message: str) -> None:
    text = "".join(line + "\n" for line in texts).encode()
    assert parse_quickly(text, HEADER) is None
    with pytest.raises(ValueError, match=message) as caught:
        parse_block(text, HEADER, "some/file.txt", FIRST_LINE)
    assert str(caught.value).startswith(f"some/file.txt:{FIRST_LINE + number}: expected ")


def test_lines_without_labels_or_features_and_spaces_between() -> None:
    text = b"1,0\n 2:1\n\n \n3 \n4   5:1  6:2 \n"
    block = parse_quickly(text, HEADER)
    assert block is not None
    assert block.label_counts.tolist() == [2, 0, 0, 0, 1, 1]
    assert block.feature_counts.tolist() == [0, 1, 0, 0, 0, 2]
    assert same(block, parse_line_by_line(text, HEADER, "f", 2))


def test_ids_are_sorted_within_a_line_and_values_follow() -> None:
    block = parse_block(b"5,3 9:1.5 2:-2\n", HEADER, "f", 2)
    assert block.label_ids.tolist() == [3, 5]
    assert block.feature_ids.tolist() == [2, 9]
    assert block.feature_values.tolist() == [-2, 1.5]


@pytest.mark.parametrize(
    "line",
    [b"", b"1 2", b"1 2 3 4", b"1 2 x", b"1.0 2 3", b"-1 2 3", b"1,2 3:4", b"1 0 3", b"1 2 0", b"1 2 2147483648"],
)
def test_wrong_headers(line: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        parse_header(line)


def test_header() -> None:
    assert parse_header(b"\xef\xbb\xbf2 5 3\r\n") == Header(2, 5, 3)
    assert parse_header(b"10  2147483647 3\r\n") == Header(10, 2147483647, 3)


@pytest.mark.parametrize(("points", "where"), [(1, "by the header"), (0, "as in training")])
def test_ids_out_of_range_say_what_bounds_them(points: int, where: str) -> None:
    with pytest.raises(ValueError, match=f"feature id from 0 to 2, {where}; got '3'"):
        parse_block(b"0 3:1\n", Header(points, 3, 2), "some", 1)
