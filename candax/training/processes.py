"""Joining the processes that ``candax.training.launch`` started."""

import os

import jax

# What every process finds in its environment.
COORDINATOR, NUMBER, INDEX = "CANDAX_COORDINATOR", "CANDAX_NUM_PROCESSES", "CANDAX_PROCESS"


def connect() -> None:
    """Joins the processes of ``python -m candax.training.launch``; does nothing in a process that stands alone.

    Call it before any other use of JAX. Without it every process would train by itself.

    Example:
        >>> import candax as cx
        >>> cx.training.connect()
    """
    if COORDINATOR in os.environ:
        jax.distributed.initialize(
            os.environ[COORDINATOR],
            num_processes=int(os.environ[NUMBER]),
            process_id=int(os.environ[INDEX]),
        )
