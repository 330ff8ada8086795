"""Damage to a file's bytes."""

from collections.abc import Callable

import numpy as np

Mutation = Callable[[bytes, np.random.Generator], bytes]

_NUMBERS = [b"-1", b"0", b"1e999", b"nan", b"inf", b"99999999999999999999", b"1.5", b"", b"0x3", b"1_0", b" ", b"-"]
_TEXT = [b"\t", b"\n", b"\r\n", b",", b":", b" ", b"\x00", b"\xff", "é".encode(), "é".encode("latin-1"), b'"']


def _cut(data: bytes, rng: np.random.Generator) -> tuple[int, int]:
    start = int(rng.integers(0, len(data) + 1))
    return start, min(len(data), start + int(rng.integers(1, 65)))


def flip(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bits."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        changed[int(rng.integers(0, len(data)))] ^= 1 << int(rng.integers(0, 8))
    return bytes(changed)


def truncate(data: bytes, rng: np.random.Generator) -> bytes:
    """The end is missing."""
    return data[: int(rng.integers(0, len(data)))]


def zeros(data: bytes, rng: np.random.Generator) -> bytes:
    """A block that was never written."""
    start, end = _cut(data, rng)
    return data[:start] + bytes(end - start) + data[end:]


def delete(data: bytes, rng: np.random.Generator) -> bytes:
    """A piece is missing."""
    start, end = _cut(data, rng)
    return data[:start] + data[end:]


def repeat(data: bytes, rng: np.random.Generator) -> bytes:
    """A piece is there twice."""
    start, end = _cut(data, rng)
    return data[:end] + data[start:]


def exchange(data: bytes, rng: np.random.Generator) -> bytes:
    """Two pieces of one length have changed places."""
    if len(data) < 2:
        return data
    length = int(rng.integers(1, 1 + min(64, len(data) // 2)))
    first = int(rng.integers(0, len(data) - 2 * length + 1))
    second = int(rng.integers(first + length, len(data) - length + 1))
    one, other = data[first : first + length], data[second : second + length]
    return data[:first] + other + data[first + length : second] + one + data[second + length :]


def insert(data: bytes, rng: np.random.Generator) -> bytes:
    """Something that does not belong there."""
    start, _ = _cut(data, rng)
    return data[:start] + _TEXT[int(rng.integers(0, len(_TEXT)))] + data[start:]


def lines(data: bytes, rng: np.random.Generator) -> bytes:
    """A line is missing, there twice, or at another place."""
    parts = data.split(b"\n")
    at, to = rng.integers(0, len(parts), 2)
    line = parts[at]
    if rng.random() < 0.5:
        del parts[at]
    parts.insert(to, line)
    return b"\n".join(parts)


def number(data: bytes, rng: np.random.Generator) -> bytes:
    """A word is another number."""
    parts = data.split(b" ")
    parts[int(rng.integers(0, len(parts)))] = _NUMBERS[int(rng.integers(0, len(_NUMBERS)))]
    return b" ".join(parts)


def encoding(data: bytes, rng: np.random.Generator) -> bytes:
    """The text in another encoding, or with a mark of one."""
    which = int(rng.integers(0, 3))
    if which == 2:
        return b"\xef\xbb\xbf" + data
    return data.decode("latin-1").encode(["utf-16", "utf-32"][which])


BINARY: list[Mutation] = [flip, truncate, zeros, delete, repeat, exchange, insert]
TEXT: list[Mutation] = [*BINARY, lines, number, encoding]
