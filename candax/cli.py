"""The command line: `candax compare`, `candax train`, `candax evaluate`."""

import contextlib
import io
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import tyro

from candax.experiments.compare import Compare, compare
from candax.experiments.train import Evaluate, Train, evaluate, train

_RUN: dict[type, Callable[[Any], Any]] = {Compare: compare, Train: train, Evaluate: evaluate}

Command = (
    Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
)


def main(args: list[str] | None = None) -> None:
    """Runs one command; what is wrong with arguments, data or folders ends in one line and exit status 2."""
    settings = _parse(args)
    try:
        _RUN[type(settings)](settings)
    except (ValueError, OSError, FloatingPointError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        print("candax: interrupted", file=sys.stderr)
        sys.exit(130)


def _parse(args: list[str] | None) -> Any:
    """The settings from the arguments; tyro's boxes of many lines become one line."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(Command, prog="candax", description="Train models with huge output layers.", args=args)
    except SystemExit as end:
        if end.code in (0, None):
            raise
        # A box, with Unicode's lines or with hyphens: a title, a rule, the message, another rule, advice.
        lines = printed.getvalue().splitlines()
        rules = [i for i, line in enumerate(lines) if "──" in line or "---" in line]
        message = " ".join(line.strip("│ ") for line in lines[rules[0] + 1 : rules[1]])
        _fail(f"{message.removesuffix('.')}. See candax --help.")


def _fail(message: str) -> NoReturn:
    print(f"candax: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
