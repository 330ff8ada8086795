"""Files of word vectors: word2vec's text and binary formats, and safetensors.

Text: a line ``number dim``, then one line per word: the word and its numbers, separated by spaces. Binary: the same
first line, then for each word its letters, a space, and ``dim`` little-endian float32. Safetensors: the tensor
``vectors``, and the words as a JSON list in the metadata.
"""

import codecs
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import Float

from candax.data.streams import MODULES, decode, most_bytes, open_bytes, read_lines
from candax.files import WrongFileError, replacing

_TEXT = (".txt", ".vec")
_FORMAT = "candax-word-vectors-1"
_LONGEST_WORD = 1 << 16


def write(path: str | os.PathLike[str], words: Sequence[str], vectors: Float[np.ndarray, "num_words dim"]) -> None:
    r"""Writes word vectors in the format of the file's ending; readers see the old file or the new one, never a part.

    Raises:
        ValueError: for another ending, or a word with white space in word2vec's formats.
        OSError: if the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "vectors.txt")
        ...     write(path, ["up", "down"], np.array([[1.0], [-1.0]], np.float32))
        ...     path.read_text()
        '2 1\nup 1.0\ndown -1.0\n'
    """
    path = Path(path)
    if path.suffix not in (*_TEXT, ".bin", ".safetensors"):
        raise ValueError(f"{path}: expected a file name that ends in .txt, .vec, .bin or .safetensors.")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.ascontiguousarray(vectors, "<f4")
    if path.suffix == ".safetensors":
        about = {"format": _FORMAT, "words": json.dumps(list(words))}
        with replacing(path) as file:
            file.write(safetensors.numpy.save({"vectors": rows}, about))
        return
    for word in words:
        if not word or word.split() != [word]:
            raise ValueError(f"{path}: word2vec's formats cannot hold {word!r}: white space. Use .safetensors.")
    with replacing(path) as file:
        file.write(f"{len(words)} {rows.shape[1]}\n".encode())
        for word, row in zip(words, rows, strict=True):
            if path.suffix == ".bin":
                file.write(word.encode() + b" " + row.tobytes() + b"\n")
            else:
                # str of a NumPy float32: the shortest text that reads back to the same number.
                file.write(f"{word} {' '.join(map(str, row))}\n".encode())


def read(path: str | os.PathLike[str]) -> tuple[tuple[str, ...], Float[np.ndarray, "num_words dim"]]:
    """Reads word vectors: files that end in .safetensors or .bin in these formats, all other files as text.

    Text and .bin may be compressed, as in vectors.bin.gz.

    Raises:
        WrongFileError: if the file does not hold what its ending says, or holds a word twice or a number that is not
            finite; with file and line number where it is text.
        OSError: if it cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path}: expected a file of word vectors, got a folder.")
    if (ending := _ending(path)) == ".safetensors" != path.suffix:
        raise WrongFileError(f"{path}: expected .safetensors that are not compressed: unpack it and read the result.")
    try:
        if ending == ".safetensors":
            words, vectors = _read_safetensors(path)
        else:
            words, vectors = _read_binary(path) if ending == ".bin" else _read_text(path)
    except WrongFileError:
        raise
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise WrongFileError(
            f"{path}: expected word vectors in word2vec's text (.txt) or binary (.bin) format or as .safetensors; "
            f"{error}."
        ) from error
    if (fault := fault_of(words, vectors, lambda number: _place(path, number))) is not None:
        raise WrongFileError(f"{fault} Remove one.")
    return tuple(words), vectors


def fault_of(
    words: Sequence[str],
    vectors: Float[np.ndarray, "num_words dim"],
    place: Callable[[int], str] = lambda number: f"word {number + 1}",
) -> str | None:
    """What is wrong with the first word that stands before too, or whose vector is not finite; None if all is well."""
    first: dict[str, int] = {}
    finite = np.isfinite(vectors).all(axis=1)
    for number, word in enumerate(words):
        if (before := first.setdefault(word, number)) != number:
            what = f"the word {word!r}, which {place(before)} has already"
        elif not finite[number]:
            what = f"a vector of {word!r} with nan or infinity"
        else:
            continue
        return f"{place(number)}: expected distinct words with finite vectors, got {what}."
    return None


def _place(path: Path, number: int) -> str:
    """Where a word is: its line in a text file, else its number."""
    in_text = _ending(path) not in (".bin", ".safetensors")
    return f"{path}:{number + 2}" if in_text else f"{path}: word {number + 1}"


def _ending(path: Path) -> str:
    """The ending that names the format: of a compressed file the one before."""
    return Path(path.stem).suffix if path.suffix.lower() in MODULES else path.suffix


def _read_safetensors(path: Path) -> tuple[list[str], np.ndarray]:
    path.open("rb").close()  # raises OSError where it cannot be opened, as for the other formats
    with safetensors.safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != _FORMAT:
            raise ValueError(f"it is of another kind: its arrays are {list(file.keys())[:8]}")
        words = json.loads(metadata["words"])
        vectors = file.get_tensor("vectors")
    if vectors.ndim != 2 or len(vectors) != len(words):
        raise ValueError(f"its {len(words)} words do not go with vectors of shape {vectors.shape}")
    return words, vectors.astype(np.float32)


def _header(path: Path, line: bytes) -> tuple[int, int]:
    parts = line.removeprefix(codecs.BOM_UTF8).split()
    if len(parts) != 2 or not all(re.fullmatch(rb"[0-9]{1,18}", part) for part in parts):
        raise ValueError(f"its first line is {line[:40]!r} and not two numbers, of words and of coordinates")
    number, dim = (int(part) for part in parts)
    # A coordinate takes two bytes at least.
    if dim < 1 or 2 * number * dim > most_bytes(path):
        raise ValueError(f"its first line promises {number} words of {dim} coordinates, more than it can hold")
    return number, dim


def _read_text(path: Path) -> tuple[list[str], np.ndarray]:
    lines = read_lines(path)
    number, dim = _header(path, next(lines, (1, b""))[1])
    words: list[str] = []
    vectors = np.zeros((number, dim), np.float32)
    for at, line in lines:
        if len(words) == number and not line.strip():
            continue
        word, *numbers = line.rstrip().split(b" ")
        if not word or len(numbers) != dim or len(words) == number:
            expected = f"a word and {dim} numbers" if len(words) < number else f"{number} words, by the first line"
            raise WrongFileError(f"{path}:{at}: expected {expected}, got {len(numbers)} numbers behind {word[:40]!r}.")
        if b"\0" in line:  # which NumPy takes for the end of a number
            raise WrongFileError(f"{path}:{at}: expected text, got a zero byte in {line[:60]!r}.")
        try:
            if b"_" in line[len(word) :]:  # NumPy reads 1_000 as 1000
                raise ValueError("an underscore is part of no number")
            with np.errstate(over="ignore"):  # infinity, which is refused below
                vectors[len(words)] = np.array(numbers, np.bytes_).astype(np.float32)
        except ValueError as error:
            raise WrongFileError(f"{path}:{at}: expected a word and {dim} numbers; {error}.") from error
        words.append(decode(path, at, word))
    if len(words) != number:
        raise ValueError(f"it ends after {len(words)} of {number} words")
    return words, vectors


def _read_binary(path: Path) -> tuple[list[str], np.ndarray]:
    words: list[str] = []
    with open_bytes(path) as (_, file):
        number, dim = _header(path, file.readline(200))
        vectors = np.zeros((number, dim), np.float32)
        for _ in range(number):
            letters = bytearray()
            while (letter := file.read(1)) != b" ":
                if not letter or len(letters) > _LONGEST_WORD:
                    raise ValueError(f"it ends after {len(words)} of {number} words")
                letters += letter
            row = file.read(4 * dim)
            if len(row) != 4 * dim:
                raise ValueError(f"it ends after {len(words)} of {number} words")
            vectors[len(words)] = np.frombuffer(row, "<f4")
            # Some writers end a vector with a line feed, some do not.
            word = bytes(letters).lstrip(b"\n").decode()
            if not word:
                raise ValueError(f"its word {len(words) + 1} is empty")
            words.append(word)
    return words, vectors
