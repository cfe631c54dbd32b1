"""Reads facts about a Kafka cluster: its brokers, version and clock, and this client's rights. Changes nothing.

Invariants:
    - A fact that this client has no right to read is None (unknown), never an empty value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.kafka.clients.client import admin_client
from holdfast.infra.kafka.clients.rights import Kind
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import ClientConfig
from holdfast.infra.kafka.topics.topics import Topics

#: Oldest version of brokers that support all requests that Holdfast sends.
BROKER_FROM = (3, 0)
#: Internal topics whose records get timestamps from the brokers' clocks. The timestamps show whether these clocks
#: differ from this machine's clock.
_STAMPED = ("__consumer_offsets", "__transaction_state")
#: Broker setting that shows the version of brokers before Kafka 4.0; Kafka 4.0 removed the setting.
_OLD_VERSION = "inter.broker.protocol.version"


class BrokerTooOld(KafkaFailed):
    """The brokers are too old: they lack requests that Holdfast needs. Fields: bootstrap, version."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Facts about a cluster at one moment.

    Args:
        brokers: Number of brokers.
        version: Protocol version of brokers before 4.0, for example ``3.7-IV4``; ``4`` for newer brokers; None if
            unknown.
        stamp_ms: Newest timestamp that a broker wrote by its own clock, ms since 1970; None if unknown.
        allowed: (kind, name) of a resource -> operations that this client may execute on it; None if unknown.
    """

    brokers: int
    version: str | None = None
    stamp_ms: int | None = None
    allowed: Mapping[tuple[Kind, str], frozenset[str] | None] = field(default_factory=dict)


def read_cluster(
    bootstrap: str, config: ClientConfig, topics: Iterable[str], groups: Iterable[str], *, timeout_s: float = 10.0
) -> ClusterFacts:
    """Read the facts of a cluster; facts that the cluster does not report within ``timeout_s`` are None.

    ``topics`` and ``groups`` are the resources whose allowed operations are read.
    """
    admin = admin_client(bootstrap, config)
    listed = admin.list_topics(timeout=timeout_s)
    names = [name for name in dict.fromkeys(topics) if name in listed.topics]
    allowed: dict[tuple[Kind, str], frozenset[str] | None] = {}
    if names:
        wanted = TopicCollection(names)
        asked = admin.describe_topics(wanted, include_authorized_operations=True, request_timeout=timeout_s)
        allowed |= {("topic", name): _operations(each, timeout_s) for name, each in asked.items()}
    wanted_groups = list(dict.fromkeys(groups))
    if wanted_groups:
        asked = admin.describe_consumer_groups(
            wanted_groups, include_authorized_operations=True, request_timeout=timeout_s
        )
        allowed |= {("group", name): _operations(each, timeout_s) for name, each in asked.items()}
    whole = admin.describe_cluster(include_authorized_operations=True, request_timeout=timeout_s)
    allowed["cluster", ""] = _operations(whole, timeout_s)
    version = _version(admin, next(iter(listed.brokers)), timeout_s)
    return ClusterFacts(len(listed.brokers), version, _stamp_ms(admin, listed, timeout_s), allowed)


def check_brokers(bootstrap: str, config: ClientConfig, *, timeout_s: float = 10.0) -> None:
    """Check that a cluster answers and that its version is supported; an unknown version passes the check.

    Raises:
        BrokerUnreachable: No broker answers.
        BrokerTooOld: The version is older than ``BROKER_FROM``.
    """
    Topics(bootstrap, config, timeout_s=timeout_s).ping()
    admin = admin_client(bootstrap, config)
    version = _version(admin, next(iter(admin.list_topics(timeout=timeout_s).brokers)), timeout_s)
    if version is not None and is_too_old(version):
        raise BrokerTooOld(
            f"The brokers at {bootstrap} are of version {version}; Holdfast needs {dotted(BROKER_FROM)} or newer.",
            action="Upgrade the brokers, and then their `inter.broker.protocol.version`; or set "
            "`HOLDFAST_KAFKA__BOOTSTRAP_SERVERS` to a newer cluster.",
            bootstrap=bootstrap,
            version=version,
        )


def is_too_old(version: str) -> bool:
    """Whether a version, in the format of ``ClusterFacts.version``, is older than ``BROKER_FROM``."""
    number = version.partition("-")[0]
    return tuple(int(part) for part in number.split(".") if part.isdigit()) < BROKER_FROM


def dotted(version: tuple[int, ...]) -> str:
    """A version as text: ``(3, 7)`` becomes ``3.7``."""
    return ".".join(map(str, version))


def _operations(asked: Future[Any], timeout_s: float) -> frozenset[str] | None:
    found = _answer(asked, timeout_s)
    operations = None if found is None else found.authorized_operations
    return None if operations is None else frozenset(each.name for each in operations)


def _version(admin: AdminClient, broker: int, timeout_s: float) -> str | None:
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    asked = admin.describe_configs([resource], request_timeout=timeout_s)[resource]
    entries = _answer(asked, timeout_s)
    if not entries:
        return None
    return str(entries[_OLD_VERSION].value) if _OLD_VERSION in entries else "4"


def _stamp_ms(admin: AdminClient, listed: Any, timeout_s: float) -> int | None:
    places = {
        TopicPartition(name, number): OffsetSpec.max_timestamp()
        for name in _STAMPED
        if name in listed.topics
        for number in listed.topics[name].partitions
    }
    if not places:
        return None
    asked = admin.list_offsets(places, request_timeout=timeout_s)
    found = [answer for each in asked.values() if (answer := _answer(each, timeout_s)) is not None]
    return max((int(each.timestamp) for each in found if each.timestamp > 0), default=None)


def _answer(asked: Future[Any], timeout_s: float) -> Any:
    """The result of a request to the cluster; None if the request was refused or timed out."""
    try:
        return asked.result(timeout_s)
    except (KafkaException, TimeoutError):
        return None
