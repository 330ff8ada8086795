"""`python -m candax`: the command line."""

from candax.cli import main

main()
