"""Runs that are killed on some devices, go on with others, and end where a run on one device does."""

import socket
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.campaign import kill
from tests.campaign.runs import SPREAD, Place
from tests.campaign.trials import BadError, Part

_PLACES = [Place(devices) for devices in (1, 2, 3, 4, 8)] + [Place(1, processes=2), Place(2, processes=2)]
_MOST_KILLS = 3
_TOLERANCE = 1e-5


def start(folder: Path, place: Place, name: str = SPREAD) -> list["kill.multiprocessing.context.ForkServerProcess"]:
    """One process or several."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    return [kill.start(name, folder, place._replace(index=index, port=port)) for index in range(place.processes)]


def trial(rng: np.random.Generator, folder: Path, name: str = SPREAD, places: Sequence[Place] = _PLACES) -> str:
    """One run, killed on up to three sets of devices."""
    whole, before = kill.whole(name), []
    for _ in range(int(rng.integers(1, 1 + _MOST_KILLS))):
        place = places[int(rng.integers(0, len(places)))]
        before.append(place)
        processes = start(folder, place, name)
        kill.wait_for(processes[0], folder, "checkpoints/[0-9]*")
        processes[0].join(float(rng.uniform(0, whole.after_first)))
        for process in processes:
            process.kill()
            process.join()
    place = places[int(rng.integers(0, len(places)))]
    processes = start(folder, place, name)
    for process in processes:
        process.join()
    after = " and ".join(f"{place.processes} x {place.devices}" for place in (*before, place))
    if any(process.exitcode for process in processes):
        raise BadError(f"{after} devices: it ended with status {processes[0].exitcode}\n{kill.log(folder)}")
    expected, found = whole.end, kill.end(folder)
    if different := [name for name in expected if not np.allclose(found[name], expected[name], atol=_TOLERANCE)]:
        raise BadError(f"{after} devices: {different} are not as on one")
    return f"to {place.processes} x {place.devices}"


PART = Part(trial, 600.0)
