"""What a word of a text is: letters, digits and underscores with the marks on them, in one spelling."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable

# An apostrophe only within a word.
_WORD = r"\w+(?:['\u2019]\w+)*"
_TWO_OR_MORE = r"\w\w+"
# Where Unicode has marks; asking for all its characters takes longer.
_PLANES = (range(0x300, 0x20000), range(0xE0000, 0xE1000))


def one_spelling(text: str) -> str:
    r"""The text with each letter and its marks as one character where there is one (Unicode's NFC).

    Example:
        >>> len("cafe\u0301"), len(one_spelling("cafe\u0301"))
        (5, 4)
    """
    return unicodedata.normalize("NFC", text)


def words_in(text: str) -> Callable[[str], list[str]]:
    r"""The function that finds the words in each part of a text: runs of word characters, with apostrophes inside.

    Word characters are letters, digits, underscores and, behind these, combining marks: vowel signs in Hindi, the dot
    of a small Turkish letter.

    Example:
        >>> text = "The cat's mat: हिन्दी भाषा"
        >>> words_in(text)(text)
        ['The', "cat's", 'mat', 'हिन्दी', 'भाषा']
    """
    return _finder(_WORD, _has_marks(text))


def long_words_in(text: str) -> list[str]:
    """The words of a text that have two characters or more, without apostrophes."""
    return _finder(_TWO_OR_MORE, _has_marks(text))(text)


@functools.cache
def _finder(pattern: str, marks: bool) -> Callable[[str], list[str]]:
    if marks:
        # A mark stands behind a letter: where none does, it begins no word.
        word = rf"\w[\w{''.join(_ranges())}]"
        pattern = pattern.replace(r"\w\w+", f"{word}+").replace(r"\w+", f"{word}*")
    return re.compile(pattern).findall


def _has_marks(text: str) -> bool:
    """Whether there may be marks: the slower pattern is only for texts with them."""
    return not text.isascii() and _some_mark().search(text) is not None


@functools.cache
def _some_mark() -> re.Pattern[str]:
    # Beyond U+FFFF any character will do: many ranges there would make the search slow.
    marks = "".join(part for part in _ranges() if part[-1] <= "\uffff")
    return re.compile(f"[{marks}\U00010000-\U0010ffff]")


@functools.cache
def _ranges() -> tuple[str, ...]:
    """The combining marks, as ranges of a class of characters."""
    codes = [code for plane in _PLANES for code in plane if unicodedata.category(chr(code))[0] == "M"]
    # In a run of codes each is as far from its place as the others.
    runs = (list(run) for _, run in itertools.groupby(enumerate(codes), lambda pair: pair[1] - pair[0]))
    return tuple(f"{chr(run[0][1])}-{chr(run[-1][1])}" for run in runs)
