"""Files of sequences: columns by their names, and quotes."""

import os

import pytest

from candax.recipes.sequences import files


def write(folder, text):
    path = folder / "shop.csv"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("header", "order"),
    [
        ("user_id,item_id,event_time", "abc"),
        ("reviewerID,asin,unixReviewTime", "abc"),
        ("user,item,VISIT-DATE", "abc"),
        ("user,item,click_ts:float", "abc"),
        ("user,item,event_timestamp_ms", "abc"),
        ("user,item,counts", "cab"),
        ("user,item,lifetime", "cab"),
        ("user,item,watch_time", "cab"),
    ],
)
def test_a_time_may_have_a_longer_name_and_none_is_said(header, order, tmp_path):
    found = files.load(write(tmp_path, f"{header}\nu,c,300\nu,a,100\nu,b,200\n"))
    assert "".join(found.item_names[item] for item in found.items) == order
    is_said = "no time column: lines are taken in the file's order" in found.notes[0]
    assert is_said == (order == "cab")
    assert ("left out: " + header.split(",")[2] in found.notes[0]) == is_said


def test_of_several_times_the_one_that_counts_is_taken_or_none(tmp_path):
    rows = "u,c,300,x\nu,a,100,y\nu,b,200,z\n"
    found = files.load(write(tmp_path, f"user,item,unixReviewTime,reviewTime\n{rows}"))
    assert [found.item_names[item] for item in found.items] == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"shop.csv:1: expected one column of times, got order_date, ship_date: call"):
        files.load(write(tmp_path, f"user,item,order_date,ship_date\n{rows}"))
    found = files.load(write(tmp_path, f"user,item,time,ship_date\n{rows}"))
    assert [found.item_names[item] for item in found.items] == ["a", "b", "c"]


def test_a_quote_that_is_not_closed_swallows_no_lines(tmp_path):
    message = "expected users, items and times without line breaks, got .*: a quote is opened and not closed in this"
    for end in (',d"\nu1,e\nu1,f\n', ",d\nu1,e\n"):
        with pytest.raises(ValueError, match=f"shop.csv:3: {message}"):
            files.load(write(tmp_path, f'user,item\nu1,a\nu1,"b\nu1,c\nu1{end}'))
    with pytest.raises(ValueError, match=f"here:1: {message}"):
        files.split_line('u1,"b', ",", "here:1")
    text = 'user,item,title\nu1,a,"two\nlines"\nu1,"b ""x""",t\n\nu1,"c,d",t\n'
    found = files.load(write(tmp_path, text))
    assert found.item_names == ("a", 'b "x"', "c,d")
    assert found.notes[1] == "shop.csv: 1 rows have line breaks within quotes, the first in line 2"


def test_lines_that_end_in_a_carriage_return_are_not_one_user(tmp_path):
    for text in ("ann a b c\rbob a b c\r", "user\titem\rann\ta\r"):
        with pytest.raises(ValueError, match=r"shop.csv:1: expected lines that end in a line feed"):
            files.load(write(tmp_path, text))


def test_a_pipe_which_would_lose_its_beginning_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe: expected a file, to be read more than once, got a pipe: write"):
        files.load(str(tmp_path / "pipe"))
