"""Errors of Kafka clients, one class for each reaction of the engine."""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE

#: The action of ``OutcomeUnknown`` in the engine.
READS_ON = "Nothing to do: the engine reads what was committed, and continues there."


class KafkaFailed(HoldfastError):
    """The cluster refused a request; the engine stops with this error."""


class BrokerUnreachable(KafkaFailed):
    """No broker answered in time; the engine waits, or stops with exit code 69."""

    cause = "broker-away"
    exit_code = EXIT_BROKER_UNAVAILABLE


class CoordinatorMoving(KafkaFailed):
    """A group's coordinator is loading or moving; a retry helps."""

    cause = "broker-away"
    exit_code = EXIT_BROKER_UNAVAILABLE


class LeaderMoving(CoordinatorMoving):
    """A partition has no leader at the moment, as after its creation or a broker's end."""


class AccessRefused(KafkaFailed):
    """A right is missing on the cluster; fields: operation, resource, rule (which grants the right)."""

    exit_code = EXIT_BAD_CONFIGURATION


class ClientSettingsInvalid(KafkaFailed):
    """A setting of the client library is unknown, reserved, or unusable."""

    exit_code = EXIT_BAD_CONFIGURATION


class TopicUnusable(KafkaFailed):
    """A topic is missing, or has the wrong partitions or configuration."""

    exit_code = EXIT_BAD_CONFIGURATION


class TransactionAborted(KafkaFailed):
    """The transaction and its local writes must be aborted; its batch is processed again."""


class ProducerFenced(KafkaFailed):
    """A newer producer with this transactional id took over; the worker drops all its tasks and rejoins."""

    cause = "fenced"


class HeadersUnreadable(KafkaFailed):
    """The headers of a message can't be read, because a name is no UTF-8; fields: topic, partition, offset."""


class MembershipLost(KafkaFailed):
    """This member is not in its group, so Kafka would not fence its commits.

    The worker drops all its tasks and rejoins.
    """

    cause = "fenced"


class OutcomeUnknown(KafkaFailed):
    """A commit got no answer and may have happened; the engine reads the committed offsets to decide."""
