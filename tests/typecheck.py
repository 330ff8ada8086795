"""The run-time type checker of the tests: beartype, taking an int where a float is asked for as PEP 484 does."""

from beartype import BeartypeConf, beartype

typecheck = beartype(conf=BeartypeConf(is_pep484_tower=True))
