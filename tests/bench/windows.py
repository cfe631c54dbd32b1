"""Windows of the bench: the engine's declarations, the expected results in plain Python, and the outputs of a run.

The windows count messages in tumbling windows of one minute, which the event time of their partition closes. Event
times are one millisecond apart, so a window has 60,000 messages.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from holdfast import Count
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from tests.bench.measured import RunWrong
from tests.bench.stream import FIRST_TIMESTAMP_MS, key_of, messages

WINDOW_MS = 60_000
Emit = Literal["", "current", "final"]
#: The share of a run with final results that counts as warm-up.
WARM_AFTER = 0.4
_PLACE = struct.Struct(">q")
_COUNT = struct.Struct("<q")


class Counted(msgspec.Struct):
    """An output: a window and its count."""

    start: int
    end: int
    value: int


_decode = msgspec.json.Decoder(Counted).decode
#: The count of each window, by key and window start.
Counts = Mapping[tuple[bytes, int], int]


def told(emit: Emit) -> str:
    """The windows in the form of a contender's arguments."""
    return f"tumbling:{WINDOW_MS}:{WINDOW_MS}:0:{emit}:count:0" if emit else ""


def builtin(frame: StreamingDataFrame, windows: str) -> StreamingDataFrame:
    """Declare the windows with a built-in column."""
    window = frame.tumbling_window(WINDOW_MS, name="windows").agg(value=Count())
    return window.final("partition") if ":final:" in windows else window.current("partition")


def function(frame: StreamingDataFrame, windows: str) -> StreamingDataFrame:
    """Declare the windows with Python functions."""
    window = frame.tumbling_window(WINDOW_MS, name="windows").reduce(lambda count, _: count + 1, lambda _: 1)
    return window.final("partition") if ":final:" in windows else window.current("partition")


def expected(count: int, keys: int, emit: Emit) -> dict[tuple[bytes, int], int]:
    """The expected last result of each window, computed in plain Python; final results are those of closed windows."""
    found: Counter[tuple[bytes, int]] = Counter()
    time_of: dict[int, int] = {}
    of: dict[tuple[bytes, int], int] = {}
    for message in messages(count, keys):
        at = FIRST_TIMESTAMP_MS + message.number
        place = key_of(message.user), at // WINDOW_MS * WINDOW_MS
        found[place] += 1
        of[place] = message.partition
        time_of[message.partition] = at
    return {
        place: many for place, many in found.items() if emit == "current" or place[1] + WINDOW_MS <= time_of[of[place]]
    }


def hash_of(counts: Counts) -> str:
    """The sha256 over keys and window starts in order, each with its count."""
    digest = hashlib.sha256()
    for (key, start), many in sorted(counts.items()):
        digest.update(key + _PLACE.pack(start) + _COUNT.pack(many))
    return digest.hexdigest()


@dataclass(slots=True)
class Sent:
    """Collects the outputs of a run, record by record."""

    counts: dict[tuple[bytes, int], int] = field(default_factory=dict)
    #: The number of results that were added.
    count: int = 0
    #: The append time of the first result, in milliseconds since the epoch.
    first_ms: int = 0
    #: For each window start, the append time of its last result, in milliseconds since the epoch.
    last_ms: dict[int, int] = field(default_factory=dict)

    def add(self, key: bytes, value: bytes, appended_ms: int) -> None:
        """Add the next record of a partition.

        Raises:
            RunWrong: The record is not a valid result.
        """
        try:
            made = _decode(value)
        except msgspec.DecodeError as failure:
            raise RunWrong(f"{value[:100]!r} is no result of a window: {failure}") from failure
        self.count += 1
        self.first_ms = min(self.first_ms or appended_ms, appended_ms)
        self.counts[key, made.start] = made.value
        self.last_ms[made.start] = max(self.last_ms.get(made.start, 0), appended_ms)

    def span(self) -> tuple[float, float, int]:
        """Start and end of the warm part in seconds since the epoch, and its number of messages (0 for one window)."""
        starts = sorted(self.last_ms)
        first, last = starts[int((len(starts) - 1) * WARM_AFTER)], starts[-1]
        begin, end = self.last_ms[first], self.last_ms[last]
        return begin / 1000, max(end, begin + 1) / 1000, last - first
