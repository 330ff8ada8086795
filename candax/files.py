"""Files that are complete or not there."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

UNFINISHED = ".unfinished"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` once the block has ended and all is on disk.

    Readers see the old file, or none, until then; if the block raises, they go on doing so. A killed process leaves a
    file beside it whose name ends in ``UNFINISHED``.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "letter"
        >>> with replacing(path) as file:
        ...     _ = file.write(b"dear")
        ...     print(path.exists())
        False
        >>> path.read_bytes()
        b'dear'
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}{UNFINISHED}")
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
