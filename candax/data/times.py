"""Numbers and times of a file's lines."""

import datetime
import math


def number_of(text: str) -> float:
    """The number that a text is.

    Raises:
        ValueError: if it is none, or 1_000, which ``float`` takes for 1000.

    Example:
        >>> number_of(" 1e3")
        1000.0
    """
    if "_" in text:
        raise ValueError(f"expected a number, got {text!r}.")
    return float(text)


# What a column of times may hold, for errors.
EXPECTED_TIME = "a time: a finite number, or a date such as 2024-05-01 or 2024-05-01 10:30:00, of one kind in all lines"


class Times:
    """Makes numbers of the times of one file, all of one kind: numbers, or dates.

    Dates are ISO 8601, with or without a time of day; one without an offset, or with "UTC" behind it, is of UTC.

    Example:
        >>> times = Times()
        >>> times("1970-01-02"), times("1970-01-01 00:00:07 UTC"), times("1970-01-01T01:00+01:00"), times("7")
        (86400.0, 7.0, 0.0, None)
    """

    def __init__(self) -> None:
        self._are_dates: bool | None = None

    def __call__(self, text: str) -> float | None:
        """The time as a number, seconds since 1970 of a date; None where it is none, or of another kind than before."""
        # A number first: 20240501 is one too.
        for are_dates, read in ((False, number_of), (True, _seconds)):
            try:
                found = read(text)
            except (ValueError, OverflowError):
                continue
            if not math.isfinite(found) or self._are_dates not in (None, are_dates):
                return None
            self._are_dates = are_dates
            return found
        return None


def _seconds(text: str) -> float:
    moment = datetime.datetime.fromisoformat(text.strip().removesuffix("UTC").rstrip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
