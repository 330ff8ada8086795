"""Where the time of a compiled program goes, operation by operation, beside what the machine does in simple programs.

Shared by the benchmarks that take ``--profile``. XLA runs a program as a list of operations, most of them fusions of
several; the profiler of JAX says how long each took. Loops are told by what runs within them.
"""

import collections
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.profiler import ProfileData
from rich.console import Console
from rich.table import Table

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

    def least(function: Any, *arguments: Any) -> float:
        jax.block_until_ready(function(*arguments))
        times = []
        for _ in range(7):
            start = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            times.append(time.perf_counter() - start)
        return min(times)

    n = 1024
    floats, whole = jnp.ones((n, n)), jnp.ones((n, n), jnp.int8)
    product = jax.jit(lambda a, b: jnp.matmul(a, b.T))
    of_whole = jax.jit(lambda a, b: jnp.matmul(a, b.T, preferred_element_type=jnp.int32))
    many = jnp.ones(1 << 25)
    return {
        "float32, 10^9 multiply-adds per second": n**3 / least(product, floats, floats) / 1e9,
        "int8, 10^9 multiply-adds per second": n**3 / least(of_whole, whole, whole) / 1e9,
        "gigabytes read and written per second": 2 * many.nbytes / least(jax.jit(lambda x: x + 1), many) / 1e9,
    }


def show(title: str, found: list[Operation], number: int = 14) -> None:
    """Prints the longest operations, and the sum of the others."""
    table = Table(title=title)
    for column in ("operation", "ms", "makes", "from"):
        table.add_column(column, justify="right" if column == "ms" else "left")
    for operation in found[:number]:
        source = "/".join(operation.source.split("/")[-3:])
        table.add_row(operation.name, f"{operation.milliseconds:.2f}", operation.result[:36], source[-60:])
    table.add_row(f"{len(found[number:])} others", f"{sum(of.milliseconds for of in found[number:]):.2f}", "", "")
    Console(width=150).print(table)
