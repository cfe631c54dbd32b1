"""Errors of Kafka clients, one class for each reaction of the engine.

HoldfastError
└── KafkaFailed                 the cluster refused; stop with this error
    ├── BrokerUnreachable       no answer in time; wait, or stop with exit code 69
    ├── CoordinatorMoving       a group's coordinator is loading or moving; retry
    ├── AccessRefused           a right is missing; the error has the rule that grants it
    ├── ClientSettingsInvalid   a setting of the client library is unknown or reserved
    ├── TopicUnusable           a topic is missing, or has the wrong partitions or configuration
    ├── TransactionAborted      abort the transaction, drop its writes, process the batch again
    ├── ProducerFenced          a newer owner took over; drop everything and rejoin
    ├── MembershipLost          this member left its group; drop everything and rejoin
    └── OutcomeUnknown          a commit may or may not have happened; read the committed offsets first
"""

from __future__ import annotations

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE, HoldfastError


class KafkaFailed(HoldfastError):
    """The cluster refused a request."""


class BrokerUnreachable(KafkaFailed):
    """No broker answered in time."""

    cause = "broker-away"
    exit_code = EXIT_BROKER_UNAVAILABLE


class CoordinatorMoving(KafkaFailed):
    """A group's coordinator is loading or moving."""

    cause = "broker-away"
    exit_code = EXIT_BROKER_UNAVAILABLE


class AccessRefused(KafkaFailed):
    """A right is missing on the cluster; fields: operation, resource, rule."""

    exit_code = EXIT_BAD_CONFIGURATION


class ClientSettingsInvalid(KafkaFailed):
    """A setting of the client library is unknown, reserved, or unusable."""

    exit_code = EXIT_BAD_CONFIGURATION


class TopicUnusable(KafkaFailed):
    """A topic is missing, or has the wrong partitions or configuration."""

    exit_code = EXIT_BAD_CONFIGURATION


class TransactionAborted(KafkaFailed):
    """The open transaction must be aborted."""


class ProducerFenced(KafkaFailed):
    """Another producer with the same transactional id, or the next owner of the partitions, took over."""

    cause = "fenced"


class MembershipLost(KafkaFailed):
    """This member is not in its group: Kafka would not fence its commits."""

    cause = "fenced"


class OutcomeUnknown(KafkaFailed):
    """A commit got no answer; it may or may not have happened."""
