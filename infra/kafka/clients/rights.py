"""Rights (ACLs) on the Kafka cluster: finds the right that a refused request lacked, and the rule that grants it.

Invariants:
    - An error about a missing right names operation, resource and rule, but no address.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation

from holdfast.infra.kafka.clients.client import admin_client
from holdfast.infra.kafka.errors import AccessRefused
from holdfast.infra.kafka.records import ClientConfig

Kind = Literal["topic", "group", "cluster", "transactional-id"]

#: librdkafka's error codes for a missing right.
REFUSALS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
#: Errors to ignore in a consumer that reads without a group. librdkafka looks up the configured group, although the
#: consumer never uses the group.
WITHOUT_A_GROUP = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED})
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.")
#: Placeholder for the principal if the settings have no user name; brokers then derive it from a certificate or ticket.
SOMEBODY = "User:<this client>"


@dataclass(frozen=True, slots=True)
class Right:
    """The right to execute one operation on one resource; ``name`` is empty for the cluster."""

    operation: str
    kind: Kind
    name: str = ""

    @property
    def resource(self) -> str:
        """The resource as words, for example ``topic orders``."""
        return "the cluster" if self.kind == "cluster" else f"{self.kind} {self.name}"

    def rule(self, principal: str) -> str:
        """The command (``kafka-acls.sh …``) that grants the right; the operator must add the brokers' addresses."""
        name = "" if self.kind == "cluster" else f" {shlex.quote(self.name) if self.name else '<its name>'}"
        granted = f"--allow-principal {shlex.quote(principal)} --operation {self.operation}"
        return f"kafka-acls.sh --add {granted} --{self.kind}{name}"


def principal_of(config: ClientConfig) -> str:
    """The Kafka principal of a client with these settings; ``SOMEBODY`` if they have no user name."""
    user = config.get("sasl.username")
    return f"User:{user}" if user else SOMEBODY


def refused(what: str, right: Right, principal: str) -> AccessRefused:
    """The error for a request that lacked a right; ``what`` says what the request does, such as ``create topic x``."""
    rule = right.rule(principal)
    return AccessRefused(
        f"Kafka refused {principal} to {what}: it may not {right.operation} {right.resource}.",
        action=f"Add this rule: `{rule}`",
        operation=right.operation,
        resource=right.resource,
        rule=rule,
    )


def refusal_of(
    error: KafkaError, what: str, principal: str, *, operation: str = "Write", names: Mapping[Kind, str] | None = None
) -> AccessRefused | None:
    """Converts a librdkafka error about a missing right to AccessRefused; None if the error has another cause.

    ``operation`` is the operation that the client needs on topics. ``names`` maps the kind of a resource to the name of
    the resource that the client uses.
    """
    rights = {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: (operation, "topic"),
        KafkaError.GROUP_AUTHORIZATION_FAILED: ("Read", "group"),
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("Write", "transactional-id"),
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: ("IdempotentWrite", "cluster"),
    }
    found: tuple[str, Kind] | None = rights.get(error.code())  # type: ignore[assignment]
    if found is None:
        return None
    return refused(what, Right(*found, (names or {}).get(found[1], "")), principal)


def not_writable(config: Mapping[str, Any], topics: Iterable[str], *, timeout_s: float = 5.0) -> tuple[str, ...]:
    """The topics that a client with these settings may not write to; empty if brokers do not report rights.

    This call is needed, because the error of a refused transaction does not name the topic.
    """
    names = sorted(set(topics))
    security = {name: value for name, value in config.items() if name.startswith(_SECURITY)}
    if not names:
        return ()
    admin, wanted = admin_client(str(config["bootstrap.servers"]), security), TopicCollection(names)
    futures = admin.describe_topics(wanted, include_authorized_operations=True, request_timeout=timeout_s)
    found = []
    for name, future in futures.items():
        try:
            if AclOperation.WRITE not in (future.result(timeout_s).authorized_operations or ()):
                found.append(name)
        except KafkaException as failure:
            if failure.args[0].code() in REFUSALS:
                found.append(name)
        except TimeoutError:
            continue
    return tuple(found)
