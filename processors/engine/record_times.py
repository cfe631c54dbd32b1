"""The record times that a topic accepts. The engine checks a record's time before it sends the record.

Without this check, one wrong time would fail a whole commit, and not only the message with that time.

A broker refuses a record whose time is further from its own clock than the topic allows
(``message.timestamp.before.max.ms`` and ``message.timestamp.after.max.ms``, KIP-937)::

            now - before           now           now + after
    ── refused ──┤── margin ─ accepted ─ margin ──├── refused ──►  time of the record

The margin allows for a broker whose clock differs from this worker's clock. If a broker refuses a record in spite of
the check, the margin is widened.

A worker's clock may be far behind the broker's clock. An input record then proves a lower bound of the broker's time.
The broker accepted the record, so the broker's clock showed at least the record's time minus ``after`` of the input
topic. This bound advances with the monotonic clock of this machine. The present time is the later of this bound and the
worker's clock, so a corrected clock takes effect at once. A bound is wrong if the input topic had another limit when
the record was written. Therefore no further bounds are computed after a broker has refused a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from holdfast.infra.clock import Clock, SystemClock
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import TopicFacts, TopicSpec
from holdfast.infra.log import get_logger

_log = get_logger("record_times")

BEFORE_KEY, AFTER_KEY = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
#: Milliseconds (a century). A topic's limit of this length or more is treated as no limit; Kafka's default is
#: larger.
_NO_LIMIT_MS = 100 * 365 * 86_400_000
#: The initial margin in milliseconds, and the factor by which each refusal multiplies it.
MARGIN_MS, MARGIN_FACTOR = 1_000, 8
#: Milliseconds. A warning says by how much the worker's clock is slow. The next warning is logged only when the clock
#: is slow by this much more.
_LOG_STEP_MS = 60_000


class RecordTimeRefused(HoldfastError):
    """An output's record time is further from the present time than its topic allows."""


class RecordTimes:
    """The range of record times that topics accept now, in milliseconds since 1970 UTC.

    Args:
        topics: For each topic, how many milliseconds a record's time may lie before and after the broker's time. A
            topic without an entry accepts all times.
        clock: The worker's clock.
        inputs: For each input topic, the maximum milliseconds by which record times may be ahead of the broker's clock.
            If a topic has no entry, its records prove nothing about the broker's time.
        stamped: The input topics in which each record's timestamp is the broker's time.
    """

    def __init__(
        self,
        topics: Mapping[str, tuple[int, int]] | None = None,
        clock: Clock | None = None,
        inputs: Mapping[str, int] | None = None,
        stamped: frozenset[str] = frozenset(),
    ) -> None:
        self._topics = dict(topics or {})
        self._clock = self.clock = clock or SystemClock()
        self.stamped = stamped
        self._inputs = dict(inputs or {})
        self._margin_ms = MARGIN_MS
        #: A lower bound of the broker's time, and the monotonic time in seconds at which an input record proved this
        #: bound.
        self._seen_ms, self._seen_at = float("-inf"), 0.0
        self._logged_ms = 0.0

    def learn(self, topic: str, time_ms: int) -> bool:
        """Raises the lower bound of the broker's time if an input record proves that the broker's time is later.

        Returns True if the bound was raised, which means that the worker's clock is slow.
        """
        if topic not in self._inputs or (seen_ms := time_ms - self._inputs[topic]) <= self._now_ms():
            return False
        self._seen_ms, self._seen_at = seen_ms, self._clock.monotonic()
        behind_ms = seen_ms - self._own_ms()
        if behind_ms >= self._logged_ms + _LOG_STEP_MS or not self._logged_ms:
            self._logged_ms = behind_ms
            _log.warning(
                "this worker's clock is behind the brokers'; set it, for example with NTP",
                behind_s=round(behind_ms / 1000, 3),
                topic=topic,
            )
        return True

    def limits(self, topic: str) -> bool:
        """Whether the topic has a limit for record times, so that the broker refuses some times."""
        return topic in self._topics

    def bounds(self, topic: str) -> tuple[float, float]:
        """Returns the earliest and the latest record time that the topic accepts now."""
        if topic not in self._topics:
            return float("-inf"), float("inf")
        before_ms, after_ms = self._topics[topic]
        # The lower bound needs no margin: an input record proves that the broker's clock has reached it.
        own_ms, told_ms = self._own_ms(), self._told_ms()
        latest = max(own_ms + max(0, after_ms - self._margin_ms), told_ms + after_ms)
        return max(own_ms, told_ms) - max(0, before_ms - self._margin_ms), latest

    def taken(self, topic: str, time_ms: int) -> int:
        """Returns ``time_ms`` if the topic accepts it, otherwise the time now."""
        earliest, latest = self.bounds(topic)
        return time_ms if earliest <= time_ms <= latest else int(self._now_ms())

    def refused(self) -> None:
        """Increases the margin and drops the lower bound, because a broker refused a time that had passed the check."""
        self._margin_ms *= MARGIN_FACTOR
        self._seen_ms = float("-inf")
        self._inputs.clear()

    def refusal(self, topic: str, time_ms: int, *, of_source: bool = False) -> RecordTimeRefused:
        """The error for an output whose time the topic does not accept. ``of_source``: a source produced the output."""
        now_ms = self._now_ms()
        ahead = time_ms > now_ms
        before_ms, after_ms = self._topics[topic]
        key, limit_ms = (AFTER_KEY, after_ms) if ahead else (BEFORE_KEY, before_ms)
        return RecordTimeRefused(
            f"The message's time is {_shown(time_ms)}, {abs(time_ms - now_ms) / 1000:,.0f} s "
            f"{'ahead of' if ahead else 'behind'} this worker's clock, and topic {topic} takes records up to "
            f"{limit_ms / 1000:,.0f} s {'ahead' if ahead else 'behind'} (`{key}`).",
            action=f"Pass another `timestamp` to `produce`, or leave it out for the present time, or raise `{key}` of "
            f"topic {topic}."
            if of_source
            else f"Correct the producer's clock, or raise `{key}` of topic {topic}. Set `dead_letter_topic` to put "
            "such messages aside.",
            topic=topic,
            seen=_shown(time_ms),
            expected_s=limit_ms / 1000,
        )

    def now_ms(self) -> int:
        """Returns the present time of the worker's own clock, in milliseconds since 1970."""
        return int(self._own_ms())

    def _now_ms(self) -> float:
        return max(self._own_ms(), self._told_ms())

    def _own_ms(self) -> float:
        return self._clock.time() * 1000

    def _told_ms(self) -> float:
        """Returns the lower bound of the broker's time now: the proved time plus the time that has passed since."""
        return self._seen_ms + (self._clock.monotonic() - self._seen_at) * 1000


#: Accepts every record time; the default if no limits are given.
ANY_TIME = RecordTimes()


def time_limits(names: Iterable[str], facts: Mapping[str, TopicFacts]) -> dict[str, tuple[int, int]]:
    """Returns for each topic the maximum ms by which a record's time may lie before, and after, the broker's clock.

    A topic without a limit has no entry.

    Args:
        names: The topics that the processor writes to.
        facts: The topics' configuration. A topic with ``message.timestamp.type=LogAppendTime`` has no limit.
    """
    found = {}
    for name in names:
        config = facts[name].config if name in facts else {}
        before_ms, after_ms = int(config.get(BEFORE_KEY, _NO_LIMIT_MS)), int(config.get(AFTER_KEY, _NO_LIMIT_MS))
        limited = min(before_ms, after_ms) < _NO_LIMIT_MS
        if limited and config.get("message.timestamp.type", "CreateTime") == "CreateTime":
            found[name] = (before_ms, after_ms)
    return found


def input_limits(topics: Iterable[TopicSpec], facts: Mapping[str, TopicFacts]) -> dict[str, int]:
    """Returns for each topic the maximum milliseconds by which its records may be ahead of the broker's clock.

    The maximum is 0 if the broker stamps the records itself. Topics without a limit have no entry.
    """
    configs = {spec.name: facts[spec.name].config for spec in topics if spec.name in facts}
    stamped = stamped_topics(configs)
    set_ms = {name: int(config.get(AFTER_KEY, _NO_LIMIT_MS)) for name, config in configs.items()}
    limits = {name: 0 if name in stamped else limit_ms for name, limit_ms in set_ms.items()}
    return {name: limit_ms for name, limit_ms in limits.items() if limit_ms < _NO_LIMIT_MS}


def stamped_topics(configs: Mapping[str, Mapping[str, str]]) -> frozenset[str]:
    """Returns the topics in which each record's timestamp is the broker's time (``LogAppendTime``)."""
    return frozenset(
        name for name, config in configs.items() if config.get("message.timestamp.type") == "LogAppendTime"
    )


def record_times(
    written: Iterable[str], inputs: Iterable[TopicSpec], facts: Mapping[str, TopicFacts], clock: Clock
) -> RecordTimes:
    """Returns the checks of record times for a processor's topics, made from the topics' Kafka configuration."""
    read = tuple(inputs)
    stamped = stamped_topics({spec.name: facts[spec.name].config for spec in read if spec.name in facts})
    return RecordTimes(time_limits(written, facts), clock, input_limits(read, facts), stamped)


def _shown(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"
