"""What can go wrong between us and Kafka, by what the engine has to do about it.

HoldfastError
└── KafkaFailed                 something the cluster refused; stop and say so
    ├── BrokerUnreachable       no answer in time; wait, or stop with the exit code for it
    ├── CoordinatorMoving       a group's coordinator is loading or moving; ask again
    ├── AccessRefused           a right is missing; the rule that grants it is in the error
    ├── ClientSettingsInvalid   a setting of the client library is not one, or is not to be chosen
    ├── TopicUnusable           a topic is missing, or has the wrong shape
    ├── TransactionAborted      the transaction must be aborted; drop the uncommitted writes and go on
    ├── ProducerFenced          a newer owner took over; drop everything and rejoin
    ├── MembershipLost          this member is not in its group any more; drop everything and rejoin
    └── OutcomeUnknown          a commit may or may not have happened; find out before going on
"""

from __future__ import annotations

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE, HoldfastError


class KafkaFailed(HoldfastError):
    """The cluster refused something."""


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
    """A setting for the client library can't be used."""

    exit_code = EXIT_BAD_CONFIGURATION


class TopicUnusable(KafkaFailed):
    """A topic is missing, or is not as it has to be."""

    exit_code = EXIT_BAD_CONFIGURATION


class TransactionAborted(KafkaFailed):
    """The open transaction can only be aborted."""


class ProducerFenced(KafkaFailed):
    """Another producer with the same transactional id, or the next owner of the partitions, took over."""

    cause = "fenced"


class MembershipLost(KafkaFailed):
    """This member has no place in its group: nothing would fence what it commits."""

    cause = "fenced"


class OutcomeUnknown(KafkaFailed):
    """A commit got no answer: it may have happened or not."""
