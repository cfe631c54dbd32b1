"""Errors of Kafka clients. The engine reacts differently to each class, for example by a retry or a stop."""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE

#: What an ``OutcomeUnknown`` tells the operator to do: nothing, because the engine handles this error itself.
READS_ON = "Nothing to do: the engine reads what was committed, and continues there."


class KafkaFailed(HoldfastError):
    """The cluster refused a request; the engine stops with this error."""


class BrokerUnreachable(KafkaFailed):
    """No broker answered in time; the engine waits, or stops with exit code 69."""

    cause = "broker-away"
    exit_code = EXIT_BROKER_UNAVAILABLE


class CoordinatorMoving(KafkaFailed):
    """A group's coordinator is loading, or is moving to another broker; a retry helps."""

    cause = "broker-away"
    exit_code = EXIT_BROKER_UNAVAILABLE


class LeaderMoving(CoordinatorMoving):
    """A partition has no leader at the moment, for example just after its creation or the stop of a broker."""


class AccessRefused(KafkaFailed):
    """This client lacks a right (ACL) on the cluster. Fields: operation, resource, rule (to be added)."""

    exit_code = EXIT_BAD_CONFIGURATION


class ClientSettingsInvalid(KafkaFailed):
    """A librdkafka setting is unknown to librdkafka, reserved for the engine, or has an unusable value."""

    exit_code = EXIT_BAD_CONFIGURATION


class TopicUnusable(KafkaFailed):
    """A topic is missing, or has the wrong partitions or configuration."""

    exit_code = EXIT_BAD_CONFIGURATION


class TransactionAborted(KafkaFailed):
    """The transaction failed and must be aborted, and its local writes discarded; its messages are processed again."""


class ProducerFenced(KafkaFailed):
    """A newer producer with the same transactional id fenced this producer; the worker drops its tasks and rejoins."""

    cause = "fenced"


class HeadersUnreadable(KafkaFailed):
    """The headers of a message can't be read, because a name is not UTF-8. Fields: topic, partition, offset."""


class MembershipLost(KafkaFailed):
    """This worker is no longer a member of its consumer group, so Kafka would not fence its commits.

    The worker drops all its tasks and rejoins.
    """

    cause = "fenced"


class OutcomeUnknown(KafkaFailed):
    """A commit got no answer, so it may or may not have succeeded; the engine reads the committed offsets."""
