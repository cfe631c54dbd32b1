"""Rights on the cluster: what a refused call was missing, and the rule that grants it.

Invariants:
    - A refusal names operation, resource and rule, and no address.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation

from holdfast.infra.kafka.client import admin_client
from holdfast.infra.kafka.errors import AccessRefused

Kind = Literal["topic", "group", "cluster", "transactional-id"]

#: What the client library says when a right is missing.
REFUSALS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
#: What the library reports to a reader that is given its partitions: it looks for its group without using it.
WITHOUT_A_GROUP = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED})
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.")
#: Who we are, when the configuration doesn't say: the certificate's or the ticket's name is the broker's to tell.
SOMEBODY = "User:<this client>"


@dataclass(frozen=True, slots=True)
class Right:
    """One operation on one resource; the name of the cluster is empty."""

    operation: str
    kind: Kind
    name: str = ""

    @property
    def resource(self) -> str:
        """The resource, for people."""
        return "the cluster" if self.kind == "cluster" else f"{self.kind} {self.name}"

    def rule(self, principal: str) -> str:
        """The command that grants it; the team adds where its brokers are."""
        name = "" if self.kind == "cluster" else f" {shlex.quote(self.name) if self.name else '<its name>'}"
        granted = f"--allow-principal {shlex.quote(principal)} --operation {self.operation}"
        return f"kafka-acls.sh --add {granted} --{self.kind}{name}"


def principal_of(config: Mapping[str, str | int | float | bool]) -> str:
    """Who a client with these settings is to the brokers, as far as they say."""
    user = config.get("sasl.username")
    return f"User:{user}" if user else SOMEBODY


def refused(what: str, right: Right, principal: str) -> AccessRefused:
    """The error for a call that a missing right stood against.

    Args:
        what: What was tried, as the end of a sentence: ``create topic orders``.
        right: What is missing.
        principal: Who tried.
    """
    rule = right.rule(principal)
    return AccessRefused(
        f"Kafka refused {principal} to {what}: it may not {right.operation} {right.resource}.",
        action=f"Have this rule added: {rule}",
        operation=right.operation,
        resource=right.resource,
        rule=rule,
    )


def refusal_of(
    error: KafkaError, what: str, principal: str, *, operation: str = "Write", names: Mapping[Kind, str] | None = None
) -> AccessRefused | None:
    """The error for what a client library answered to a producer or consumer; None when no right was missing.

    Args:
        error: What it answered.
        what: What was tried, as the end of a sentence.
        principal: Who tried.
        operation: What topics and the cluster are needed for.
        names: What the client works with, by kind.
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
    """Those of the topics that a client with these settings may not write to, as brokers tell; empty if they don't.

    For a refusal that names no topic, as that of a transaction does.
    """
    names = sorted(set(topics))
    security = {name: value for name, value in config.items() if name.startswith(_SECURITY)}
    if not names:
        return ()
    admin = admin_client(str(config["bootstrap.servers"]), security)
    futures = admin.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=timeout_s
    )
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
