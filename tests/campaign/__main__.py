"""See ``tests.campaign``."""

import dataclasses
import sys

import tyro

from tests.campaign.parts import EXTRA, PARTS
from tests.campaign.trials import run, run_one


@dataclasses.dataclass(frozen=True)
class Campaign:
    """Runs trials; exit status 1 if one was bad."""

    minutes: float = 20.0
    """In all, shared by the parts."""
    seed: int = 0
    """Of all trials."""
    part: str | None = None
    """One part alone."""
    trial: int | None = None
    """One trial of the part again."""


def main(settings: Campaign) -> int:
    """Prints what was bad as it is found, and a line for each part."""
    names = list(PARTS) if settings.part is None else [settings.part]
    parts = PARTS | EXTRA
    if unknown := set(names) - set(parts):
        print(f"expected a part of {', '.join(parts)}, got {', '.join(unknown)}.")
        return 2
    summary, bad = [], 0
    for name in names:
        if settings.trial is not None:
            parts[name].prepare()
            tried, why = run_one(parts[name], settings.seed, settings.trial)
            print(f"{name}, trial {settings.trial}: {', '.join(tried)}{'' if why is None else f': {why}'}")
            bad += why is not None
            continue
        found = run(parts[name], settings.seed, seconds=60 * settings.minutes / len(names))
        for number, why in found.bad:
            print(f"{why}\n  again: python -m tests.campaign --part {name} --seed {settings.seed} --trial {number}\n")
        tried = ", ".join(f"{what} {number}" for what, number in sorted(found.tried.items()))
        summary.append(f"{name}: {found.trials} trials, {len(found.bad)} bad ({tried})")
        bad += len(found.bad)
    print("\n".join(summary))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Campaign)))
