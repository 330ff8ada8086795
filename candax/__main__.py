"""`candax`, and `python -m candax`: the command line."""

from candax.large_pages import with_large_pages


def main() -> None:
    """Runs one command, with large memory pages."""
    with_large_pages()  # before anything is imported that would have to be imported again
    from candax import cli

    cli.main()


if __name__ == "__main__":
    main()
