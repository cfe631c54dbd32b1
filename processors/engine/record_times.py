"""The times that a topic takes in records. Checked before a record is sent, so that one message fails and no commit.

A broker refuses a record whose time is further from its own clock than the topic allows
(``message.timestamp.before.max.ms`` and ``message.timestamp.after.max.ms``, KIP-937)::

            now - before           now           now + after
    ── refused ──┤── margin ── taken ── margin ──├── refused ──►  time of the record

The margin is for a broker whose clock differs from this worker's. A refusal in spite of the check makes it wider.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from holdfast.infra.clock import Clock, SystemClock
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import TopicFacts

BEFORE_KEY, AFTER_KEY = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
#: Milliseconds. A tolerance of a century or more is none: Kafka's default for the past is the largest number.
_NO_LIMIT_MS = 100 * 365 * 86_400_000
#: The margin at the start, and its factor after each refusal.
MARGIN_MS, MARGIN_FACTOR = 1_000, 8


class RecordTimeRefused(HoldfastError):
    """An output's time is further from now than its topic allows."""


class RecordTimes:
    """The times that topics take now, in milliseconds since 1970 UTC.

    Args:
        topics: Tolerances for the past and the future by topic, in milliseconds; no entry takes all times.
        clock: The worker's clock.
    """

    def __init__(self, topics: Mapping[str, tuple[int, int]] | None = None, clock: Clock | None = None) -> None:
        self._topics = dict(topics or {})
        self._clock = clock or SystemClock()
        self._margin_ms = MARGIN_MS

    def limits(self, topic: str) -> bool:
        """Whether the topic refuses some times."""
        return topic in self._topics

    def bounds(self, topic: str) -> tuple[float, float]:
        """The earliest and the latest time that the topic takes now."""
        if topic not in self._topics:
            return float("-inf"), float("inf")
        before_ms, after_ms = self._topics[topic]
        now_ms = self._clock.time() * 1000
        return now_ms - max(0, before_ms - self._margin_ms), now_ms + max(0, after_ms - self._margin_ms)

    def taken(self, topic: str, time_ms: int) -> int:
        """``time_ms``, or the present time if the topic does not take it."""
        earliest, latest = self.bounds(topic)
        return time_ms if earliest <= time_ms <= latest else int(self._clock.time() * 1000)

    def refused(self) -> None:
        """Make the margin wider: a broker refused a time that this check let pass."""
        self._margin_ms *= MARGIN_FACTOR

    def refusal(self, topic: str, time_ms: int) -> RecordTimeRefused:
        """The error for an output with this time."""
        now_ms = self._clock.time() * 1000
        ahead = time_ms > now_ms
        before_ms, after_ms = self._topics[topic]
        key, limit_ms = (AFTER_KEY, after_ms) if ahead else (BEFORE_KEY, before_ms)
        return RecordTimeRefused(
            f"The message's time is {_shown(time_ms)}, {abs(time_ms - now_ms) / 1000:,.0f} s "
            f"{'ahead of' if ahead else 'behind'} this worker's clock, and topic {topic} takes records up to "
            f"{limit_ms / 1000:,.0f} s {'ahead' if ahead else 'behind'} (`{key}`).",
            action=f"Correct the producer's clock, or raise `{key}` of topic {topic}. Set `dead_letter_topic` to put "
            "such messages aside.",
            topic=topic,
            seen=_shown(time_ms),
            expected_s=limit_ms / 1000,
        )


#: For topics whose limits do not matter.
ANY_TIME = RecordTimes()


def time_limits(names: Iterable[str], facts: Mapping[str, TopicFacts]) -> dict[str, tuple[int, int]]:
    """By topic, its tolerances for the past and the future in milliseconds; topics without a limit have no entry.

    Args:
        names: The topics that the processor writes to.
        facts: Their configuration. A topic with ``message.timestamp.type=LogAppendTime`` has no limit.
    """
    found = {}
    for name in names:
        config = facts[name].config if name in facts else {}
        before_ms, after_ms = int(config.get(BEFORE_KEY, _NO_LIMIT_MS)), int(config.get(AFTER_KEY, _NO_LIMIT_MS))
        limited = min(before_ms, after_ms) < _NO_LIMIT_MS
        if limited and config.get("message.timestamp.type", "CreateTime") == "CreateTime":
            found[name] = (before_ms, after_ms)
    return found


def _shown(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"
