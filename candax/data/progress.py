"""The progress bar of everything here that takes longer than a moment."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar on standard error for as long as the ``with`` block runs, then removes it.

    The block gets a function and calls it with the amount of work done so far, out of ``total``, in any unit.

    Example:
        >>> with progress_bar("counting", total=3) as done:
        ...     for i in range(3):
        ...         done(i + 1)
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # Without a terminal the bar would leave an empty line in log files.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=total)
        yield lambda done: progress.update(task, completed=done)
