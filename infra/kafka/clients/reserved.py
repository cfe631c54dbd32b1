"""Reserved librdkafka settings. The engine depends on the values of these settings, so users may not change them.

Names and aliases are those of librdkafka's CONFIGURATION.md. Settings that a user may want to change, such as
``session.timeout.ms``, are not reserved.

Invariants:
    - An error names a setting as the user wrote it, even if the user wrote an alias.
    - Values are compared without regard to case, as in librdkafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Alias of a reserved setting -> its documented name.
ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "request.required.acks": "acks",
    "retries": "message.send.max.retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "delivery.timeout.ms": "message.timeout.ms",
    "auto.commit.enable": "enable.auto.commit",
}

#: Maximum number of requests in flight with which an idempotent producer keeps the order of records.
IN_FLIGHT_MAX = 5


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reserved setting.

    Args:
        why: The reason why it is reserved, as a sentence without a full stop.
        allows: Function that tells whether a value is allowed, because it has the same effect as the engine's value.
    """

    why: str
    allows: Callable[[str], bool] = lambda value: False


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value in values


def _number(fits: Callable[[int], bool]) -> Callable[[str], bool]:
    """Returns a function that tells whether a value is allowed: numbers only if ``fits`` is true for them.

    Text that is no number is allowed, too, because librdkafka itself reports such a value.
    """

    def allows(value: str) -> bool:
        try:
            return fits(int(value))
        except ValueError:
            return True

    return allows


_TOGETHER = "the engine commits offsets together with state"
_ORDER = "each record must arrive once, in order"
_FALSE, _TRUE = _one_of("false", "f", "0"), _one_of("true", "t", "1")

#: Documented name -> reserved setting. All other settings may be changed by the user.
RESERVED: Mapping[str, Reserved] = {
    "isolation.level": Reserved("the engine reads committed records only", _one_of("read_committed")),
    "enable.auto.commit": Reserved(_TOGETHER, _FALSE),
    "auto.commit.interval.ms": Reserved(f"{_TOGETHER}; set `commit_interval` of `Application`", _one_of("0")),
    "enable.auto.offset.store": Reserved(_TOGETHER, _FALSE),
    "offset.store.method": Reserved(_TOGETHER, _one_of("broker")),
    "offset.store.path": Reserved(_TOGETHER),
    "offset.store.sync.interval.ms": Reserved(_TOGETHER),
    "auto.offset.reset": Reserved("the engine chooses the start; set `auto_offset_reset` of `Application`"),
    "enable.partition.eof": Reserved("the engine must see where a partition ends", _TRUE),
    "group.id": Reserved("it is the `consumer_group` of `Application`"),
    "group.protocol": Reserved("the engine sets session and assignor of the classic one", _one_of("classic")),
    "group.remote.assignor": Reserved("the engine needs partition n of all topics that share state in one worker"),
    "group.protocol.type": Reserved("the group has consumers", _one_of("consumer")),
    "transactional.id": Reserved("the engine makes it from the consumer group, the machine and the slot"),
    "enable.idempotence": Reserved(_ORDER, _TRUE),
    "enable.gapless.guarantee": Reserved("a failed record ends its transaction, not the producer", _FALSE),
    "acks": Reserved("a record counts once all in-sync replicas have it", _one_of("all", "-1")),
    "message.send.max.retries": Reserved(
        f"{_ORDER}, also where an answer was lost, so it is sent again", _number(lambda value: value >= 1)
    ),
    "max.in.flight.requests.per.connection": Reserved(
        f"{_ORDER}: at most {IN_FLIGHT_MAX} may be on their way",
        _number(lambda value: value <= IN_FLIGHT_MAX),
    ),
    "queuing.strategy": Reserved(_ORDER, _one_of("fifo")),
    "partitioner": Reserved(
        "keys must lie where Java's clients and `group_by` put them", _one_of("murmur2_random", "murmur2")
    ),
    "delivery.report.only.error": Reserved("the engine needs the offset of each changelog record", _FALSE),
    "retry.backoff.ms": Reserved("the engine derives from it after which time a request may have been sent twice"),
    "bootstrap.servers": Reserved("set `broker_address` of `Application`, or `HOLDFAST_KAFKA__BOOTSTRAP_SERVERS`"),
} | {
    name: Reserved("the engine sets this callback itself")
    for name in (
        *("error_cb", "on_delivery", "dr_cb", "dr_msg_cb", "partitioner_cb", "msg_order_cmp", "consume_cb"),
        *("rebalance_cb", "offset_commit_cb", "on_commit", "background_event_cb", "default.topic.config"),
    )
}


def contradiction(name: str, value: Any) -> str | None:
    """The reason why a user may not set a setting to this value; None if the value is allowed."""
    found = RESERVED.get(ALIASES.get(name, name))
    return None if found is None or found.allows(str(value).strip().lower()) else found.why
