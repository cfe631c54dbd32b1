"""Access to warehouse, topics, cluster and workers, for the stages that write table rows or file entries to stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.erased_keys import ErasedKeys, nothing_erased
from holdfast.processors.lifecycle.plans.facts.warehouse import Tables

#: Function of processor and stores that asks workers for fingerprints: store -> partition -> fingerprint.
Held = Callable[[str, Sequence[str]], Mapping[str, Mapping[int, Fingerprint]]]


@dataclass(frozen=True, slots=True)
class TableWorld:
    """The objects with which ``TableStages`` reads and changes other systems.

    Args:
        tables: Access to the warehouse.
        topics: Access to Kafka topics and groups.
        cluster: Function of a processor that returns its connection to Kafka.
        topology: Function of a processor that returns its present topology.
        held: Function that asks the owners (workers) for the fingerprints of their stores.
        clock: Module or object with ``monotonic`` and ``sleep``, in seconds.
        erased: Function of a processor that returns its erased keys.
    """

    tables: Tables
    topics: Topics
    cluster: Callable[[str], KafkaCluster]
    topology: Callable[[str], Topology]
    held: Held
    clock: Any = time
    erased: Callable[[str], ErasedKeys] = nothing_erased
