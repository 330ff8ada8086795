"""Joining the processes that ``candax.training.launch`` started, and the mesh of all their devices."""

import os

import jax
import numpy as np
from jax.sharding import Mesh

from candax.checks import checked

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
        # On CPUs, processes of several devices each wait for one another for ever once several programs are under way.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        jax.distributed.initialize(
            os.environ[COORDINATOR],
            num_processes=int(os.environ[NUMBER]),
            process_id=int(os.environ[INDEX]),
        )


@checked
def class_mesh(num_devices: int | None = None) -> Mesh:
    """The simplest mesh: one axis "classes", over the first ``num_devices`` devices (None: all).

    Class rows lie over it, and so do examples. Use ``jax.make_mesh`` for several axes.

    Raises:
        ValueError: if there are fewer devices.

    Example:
        >>> import candax as cx
        >>> cx.training.class_mesh(1).axis_names
        ('classes',)
    """
    devices = jax.devices()
    number = len(devices) if num_devices is None else num_devices
    if not 1 <= number <= len(devices):
        raise ValueError(
            f"expected 1 to {len(devices)} devices, as many as there are, got {number}. On a CPU, "
            "XLA_FLAGS=--xla_force_host_platform_device_count=8 makes 8 of one."
        )
    return Mesh(np.array(devices[:number]), ("classes",))
