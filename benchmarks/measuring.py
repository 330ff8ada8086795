"""What the benchmarks share: the least of some times, the name of the machine, one table and one file of figures."""

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from candax.diagnostics.timing import milliseconds
from candax.recipes import common
from candax.recipes.common import report, study


def least_ms(call: Callable[[], Any], repeats: int) -> float:
    """The least of ``milliseconds``: what else the machine does only adds."""
    return float(milliseconds(call, repeats).min())


def machine() -> str:
    """What was measured on."""
    device = jax.devices()[0]
    name = f"{device.device_kind} ({device.platform}), {os.cpu_count()} cores, {platform.machine()}"
    return f"{name}, JAX {jax.__version__}"


def show(title: str, columns: Sequence[common.Column], rows: Sequence[Mapping[str, Any]], caption: str = "") -> None:
    """Prints rows of figures as a table."""
    study.show(report.table(title, columns, [dict(row) for row in rows], caption or None))


def write(path: Path | None, record: Any) -> None:
    """Writes figures as JSON, where there is a path."""
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
