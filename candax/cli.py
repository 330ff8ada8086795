"""The command line: `candax compare`, `candax train`, `candax evaluate`."""

import sys
from collections.abc import Callable
from typing import Annotated, Any

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
    settings = tyro.cli(Command, prog="candax", description="Train models with huge output layers.", args=args)
    try:
        _RUN[type(settings)](settings)
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"candax: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("candax: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
