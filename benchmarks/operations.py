"""Where the time of a compiled program goes, operation by operation, beside what the machine does in simple programs.

Shared by the benchmarks that take ``--profile``. XLA runs a program as a list of operations, most of them fusions of
several; the profiler of JAX says how long each took. Loops are told by what runs within them.
"""

import collections
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.profiler import ProfileData
from measuring import least_ms, show

from candax.recipes import common

# Their time is that of what runs within them.
_AROUND = ("while", "call", "conditional")
# An operation in the text of a compiled program: its name, its result, and the function of JAX that it is from.
_LINE = re.compile(r'^\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\(.*?(?:op_name="([^"]*)")?[^"]*$', re.MULTILINE)


class Operation(NamedTuple):
    """Milliseconds of an operation per call of the program, what it makes, and where it comes from."""

    name: str
    milliseconds: float
    result: str
    source: str


def operations(text: str, call: Callable[[], Any], repeats: int = 5) -> list[Operation]:
    """The operations of a program, the longest first.

    Args:
        text: of the compiled program (``compiled.as_text()``).
        call: runs it.
        repeats: how often, for a mean.
    """
    jax.block_until_ready(call())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(repeats):
                jax.block_until_ready(call())
        (file,) = Path(folder).glob("**/*.xplane.pb")
        events = [
            event for plane in ProfileData.from_file(str(file)).planes for line in plane.lines for event in line.events
        ]
        total: collections.Counter[str] = collections.Counter()
        for event in events:
            if any(key == "hlo_op" for key, _ in event.stats):
                total[event.name] += event.duration_ns
    known = {name: (result, kind, source or "") for name, result, kind, source in _LINE.findall(text)}
    found = []
    for name, nanoseconds in total.most_common():
        result, kind, source = known.get(name, ("", "", ""))
        if kind not in _AROUND and not name.startswith(_AROUND):
            found.append(Operation(name, nanoseconds / 1e6 / repeats, re.sub(r"\{[^}]*\}", "", result), source))
    return found


def limits() -> dict[str, float]:
    """What this machine reaches in simple programs: products of square matrices, and a copy of a large array."""

    def per_second(number: int, function: Any, *arguments: Any) -> float:
        return number / least_ms(lambda: function(*arguments), 7) / 1e6

    n = 1024
    floats, whole = jnp.ones((n, n)), jnp.ones((n, n), jnp.int8)
    product = jax.jit(lambda a, b: jnp.matmul(a, b.T))
    of_whole = jax.jit(lambda a, b: jnp.matmul(a, b.T, preferred_element_type=jnp.int32))
    many = jnp.ones(1 << 25)
    return {
        "float32, 10^9 multiply-adds per second": per_second(n**3, product, floats, floats),
        "int8, 10^9 multiply-adds per second": per_second(n**3, of_whole, whole, whole),
        "gigabytes read and written per second": per_second(2 * many.nbytes, jax.jit(lambda x: x + 1), many),
    }


def show_operations(title: str, found: list[Operation], number: int = 14) -> None:
    """Prints the longest operations, and the sum of the others."""
    others = Operation(f"{len(found[number:])} others", sum(of.milliseconds for of in found[number:]), "", "")
    rows = [
        {**of._asdict(), "result": of.result[:36], "source": "/".join(of.source.split("/")[-3:])[-60:]}
        for of in (*found[:number], others)
    ]
    show(title, common.columns(name="", milliseconds=".2f", result="", source=""), rows)
