"""Computes from the file of flights which windows the demo's processors must have sent. Uses neither engine nor Spark.

A window is sent once, when the stream time of its partition reaches the window's end plus the grace period. Stream time
is the latest departure among all keys of the partition. After a ``group_by``, stream time is the latest departure among
all keys of all partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast.infra.kafka.topics.partitioners import MURMUR2, PARTITIONERS
from holdfast.infra.sample_data.flights import Flight, due_ms, left, left_ms
from holdfast.processors.definitions import carriers, delays, rotations

MS = timedelta(milliseconds=1)
HOUR_MS = delays.HOUR // MS
GAP_MS = rotations.GAP // MS


@dataclass(slots=True)
class Departures:
    """The departure times of flights, by the key of their messages."""

    #: Key -> its departure times, milliseconds since 1970, in the order in which the flights are sent.
    times: dict[str, list[int]] = field(default_factory=dict)

    def add(self, key: str, time_ms: int | None) -> None:
        """Add the departure time of a flight, milliseconds since 1970; None (a cancelled flight) adds nothing."""
        if time_ms is not None:
            self.times.setdefault(key, []).append(time_ms)


def departure(flight: Flight) -> int | None:
    """The departure time of a flight, milliseconds since 1970; None for a cancelled flight."""
    return left_ms(flight, None, due_ms(flight), None) if left(flight) else None


def closed_hours(departures: Departures, partitions: int) -> dict[str, list[int]]:
    """Key -> the starts of the hourly windows that must have been sent, oldest first."""
    return _closed(departures, hours, delays.GRACE // MS, partitions)


def closed_hours_of_carriers(departures: Departures) -> dict[str, list[int]]:
    """Carrier -> the starts of the hourly windows that must have been sent, oldest first."""
    return _closed(departures, hours, carriers.GRACE // MS, partitions=1)


def closed_rotations(departures: Departures, partitions: int) -> dict[str, list[int]]:
    """Key -> the starts of the session windows (rotations) that must have been sent, oldest first."""
    return _closed(departures, sessions, GAP_MS + rotations.GRACE // MS, partitions)


def hours(times: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end of each hour with at least one departure, oldest first; milliseconds since 1970."""
    starts = sorted({time - time % HOUR_MS for time in times})
    return [(start, start + HOUR_MS) for start in starts]


def sessions(times: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Start and end of each session of departures, which must be sorted by time.

    A session ends one millisecond after its last departure.
    """
    start = last = times[0]
    for time in times:
        if time - last > GAP_MS:
            yield start, last + 1
            start = time
        last = time
    yield start, last + 1


def numbered(closed: Iterable[tuple[str, int]], expected: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, int]]:
    """Converts sent windows (key, start) to (key, number).

    The number is the position of the window among the key's expected windows, from 1. It is 0 for an unexpected window.
    """
    numbers = {key: {start: number for number, start in enumerate(starts, 1)} for key, starts in expected.items()}
    return ((key, numbers.get(key, {}).get(start, 0)) for key, start in closed)


def _closed(
    departures: Departures,
    windows: Callable[[Sequence[int]], Iterable[tuple[int, int]]],
    wait_ms: int,
    partitions: int,
) -> dict[str, list[int]]:
    """Key -> start of each window that is closed, because stream time has reached its end plus ``wait_ms``."""
    place = {key: PARTITIONERS[MURMUR2](key.encode(), partitions) for key in departures.times}
    stream: dict[int, int] = {}
    for key, times in departures.times.items():
        stream[place[key]] = max(stream.get(place[key], 0), *times)
    return {
        key: [start for start, end in windows(sorted(times)) if end + wait_ms <= stream[place[key]]]
        for key, times in departures.times.items()
    }
