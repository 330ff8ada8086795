"""Sentences from text files and from the source of Python's standard library."""

import dataclasses
import keyword
import os
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from candax.checks import checked
from candax.data.corpus import Corpus, corpus_of
from candax.data.python_stdlib import each_file, library_of
from candax.data.streams import text_lines
from candax.data.tokens import long_words_in, one_spelling

# Paths that an error shows.
_SHOWN = 3
# A full stop, question or exclamation mark before white space (always in wikitext), a quote, a bracket or the end.
_SENTENCE_END = re.compile(r"[.!?]+(?=[\s\"')]|$)")


@checked
def text_corpus(
    paths: Iterable[str | os.PathLike[str]], *, min_count: int = 4, max_length: int = 70, name: str | None = None
) -> Corpus:
    r"""Sentences of text files: small letters, no punctuation, no English stop words.

    A sentence ends at a full stop, a question or an exclamation mark, and at the end of a line. Words are runs of two
    or more letters, digits, underscores and combining marks, in Unicode's normal form C. Rare words and long sentences
    are left out, see ``corpus_of``.

    Args:
        paths: files in UTF-8, plain or .gz, .bz2, .xz, .zst.
        min_count: words that occur less often are removed.
        max_length: the most words of a sentence that is kept.
        name: of the corpus; None: that of the first file.

    Returns:
        The corpus.

    Raises:
        ValueError: if a file is not text, or nothing is left.
        OSError: if a file cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "cats.txt")
        ...     _ = path.write_text("The cat sat on the mat. Did the CAT see rats?\nCats!\n")
        ...     corpus = text_corpus([path], min_count=1)
        >>> [corpus.words[i] for i in corpus.ids]
        ['cat', 'sat', 'mat', '</s>', 'did', 'cat', 'rats', '</s>', 'cats', '</s>']
    """
    # Takes a second to load, for which what reads no text, such as the help of a command, should not wait.
    from sklearn.feature_extraction.text import CountVectorizer

    files = [Path(path) for path in paths]
    if not files:
        raise ValueError("expected one text file or more, got none.")
    words_of = CountVectorizer(
        stop_words="english", preprocessor=_in_small_letters, tokenizer=long_words_in, token_pattern=None
    ).build_analyzer()
    found = (words_of(part) for line in _lines(files) for part in _SENTENCE_END.split(line) if part.strip())
    corpus = corpus_of(shown_paths(files), found, min_count=min_count, max_length=max_length)
    return dataclasses.replace(corpus, name=name or files[0].name.split(".")[0])


@checked
def python_corpus(stdlib: str | os.PathLike[str] | None = None, *, min_count: int = 4, max_length: int = 70) -> Corpus:
    r"""The identifiers of Python's standard library, in their order: a corpus that every machine has.

    A sentence is a paragraph of code: lines without an empty line between them. Keywords, the stop words of code, are
    left out, and so are comments and strings. Files that are not valid Python are left out.

    Args:
        stdlib: the library's folder; None: that of the Python in use.
        min_count: identifiers that occur less often are removed.
        max_length: the most identifiers of a sentence that is kept.

    Returns:
        The corpus.

    Raises:
        ValueError: if nothing is left.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.py").write_text("import sys\n\nfor part in sys.path:\n    print(part)  # one\n")
        ...     corpus = python_corpus(folder, min_count=1)
        >>> [corpus.words[i] for i in corpus.ids]
        ['sys', '</s>', 'part', 'sys', 'path', 'print', 'part', '</s>']
    """
    return corpus_of("python-stdlib", python_sentences(stdlib), min_count=min_count, max_length=max_length)


def python_sentences(stdlib: str | os.PathLike[str] | None = None) -> Iterator[list[str]]:
    """The identifiers of each paragraph of code of Python's standard library, see ``python_corpus``."""
    library = library_of(stdlib)
    # Each file is read to its end first, so that nothing is taken from one that turns out not to be Python.
    for _, found in each_file(library.names, lambda name: list(_paragraphs(library.root / name))):
        yield from found or ()


def shown_paths(paths: Sequence[Path]) -> str:
    """The paths of a text for errors, the first of them where there are many."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(map(str, paths[:_SHOWN])) + more


def _in_small_letters(text: str) -> str:
    return one_spelling(text.lower())


def _paragraphs(path: Path) -> Iterator[list[str]]:
    paragraph: list[str] = []
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                paragraph.append(token.string)
            elif token.type == tokenize.NL and not token.line.strip() and paragraph:
                yield paragraph
                paragraph = []
    if paragraph:
        yield paragraph


def _lines(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        yield from (line for _, line in text_lines(path))
