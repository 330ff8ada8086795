"""Several processes on one machine, each with its own devices: ``python -m candax.training.launch 2 train.py ...``.

This starts the script in every process, with addresses in the environment; the script calls
``candax.training.connect()`` before anything else of JAX, and then trains as one program: ``jax.devices()`` are those
of all processes. Across machines, start one process on each by other means and call ``jax.distributed.initialize`` with
their addresses; on clusters that JAX knows, it needs no addresses.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
from jax.sharding import Mesh

from candax.checks import check_positive, checked

# What every process finds in its environment.
COORDINATOR, NUMBER, INDEX = "CANDAX_COORDINATOR", "CANDAX_NUM_PROCESSES", "CANDAX_PROCESS"
_POLL = 0.1


def connect() -> None:
    """Joins the processes of ``python -m candax.training.launch``; does nothing in a process that stands alone.

    Call it before any other use of JAX. Without it every process would train by itself.

    Example:
        >>> import candax as cx
        >>> cx.training.connect()
    """
    if COORDINATOR in os.environ:
        # On CPUs, processes with several devices each wait for one another for ever if several programs are under way.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        jax.distributed.initialize(
            os.environ[COORDINATOR],
            num_processes=int(os.environ[NUMBER]),
            process_id=int(os.environ[INDEX]),
        )


@checked
def class_mesh(num_devices: int | None = None) -> Mesh:
    """The simplest mesh: one axis "classes", over the first ``num_devices`` devices (None: all).

    The rows of classes are spread over this axis, and so are examples. Use ``jax.make_mesh`` for several axes.

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


def launch(num_processes: int, command: list[str]) -> int:
    """Runs a command in several processes that ``connect`` joins, until all are done or one has failed.

    Args:
        num_processes: how many.
        command: program and arguments.

    Returns:
        0, or the exit status of the first process that failed, in which case the others are ended.

    Raises:
        ValueError: if ``num_processes`` is not positive.
    """
    check_positive("num_processes", num_processes)
    coordinator = f"127.0.0.1:{_free_port()}"
    running = [
        subprocess.Popen(
            command,
            env=os.environ | {COORDINATOR: coordinator, NUMBER: str(num_processes), INDEX: str(index)},
        )
        for index in range(num_processes)
    ]
    interrupted = False
    try:
        while True:
            try:
                time.sleep(_POLL)
            except KeyboardInterrupt:
                # A terminal sends Ctrl-C to all processes: they save and end by themselves. A second Ctrl-C ends them.
                if interrupted:
                    raise
                interrupted = True
            states = [process.poll() for process in running]
            failed = [status for status in states if status]
            if failed:
                return failed[0]
            if all(status == 0 for status in states):
                return 0
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
        for process in running:
            process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def main() -> int:
    """The command line: the number of processes, the script, and its arguments."""
    parser = argparse.ArgumentParser(prog="python -m candax.training.launch", description=__doc__.split("\n")[0])
    parser.add_argument("num_processes", type=int, help="how many processes")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a Python script and its arguments")
    arguments = parser.parse_args()
    # By default, Python would end without ending the processes; with this they are sent the signal, and save.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if not arguments.command:
        parser.error("expected a Python script after the number of processes")
    return launch(arguments.num_processes, [sys.executable, *arguments.command])


if __name__ == "__main__":
    sys.exit(main())
