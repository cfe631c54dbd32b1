"""The ports of the stages that write the rows of tables and the entries of files to stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.topics import Topics
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.warehouse_facts import Tables

#: The fingerprints of the owners' stores: processor, stores -> store -> partition -> fingerprint.
Held = Callable[[str, Sequence[str]], Mapping[str, Mapping[int, Fingerprint]]]


@dataclass(frozen=True, slots=True)
class TableWorld:
    """The ports of ``TableStages``.

    Args:
        tables: The warehouse.
        topics: Kafka.
        cluster: Processor -> its connection to Kafka.
        topology: Processor -> its current definition.
        held: Asks the owners for fingerprints.
        clock: Monotonic seconds, and sleep.
    """

    tables: Tables
    topics: Topics
    cluster: Callable[[str], KafkaCluster]
    topology: Callable[[str], Topology]
    held: Held
    clock: Any = time
