"""`candax`, and `python -m candax`: the command line."""

from candax.allocation import with_reused_memory


def main() -> None:
    """Runs one command, in a process that uses freed memory again."""
    with_reused_memory()  # before anything is imported that would have to be imported again
    from candax import cli

    cli.main()


if __name__ == "__main__":
    main()
