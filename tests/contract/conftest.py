"""One cluster for each contract test: in memory, or a real broker. Both must behave the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.testing import InlineProcess, InMemoryCluster
from tests.contract.bench import Bench


@pytest.fixture(params=["in memory", pytest.param("real", marks=pytest.mark.kafka)])
def bench(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> Iterator[Bench]:
    """A bench for contract tests, once with an in-memory cluster and once with a real broker."""
    if request.param == "real":
        bootstrap: str = request.getfixturevalue("broker")
        # The test machine may pause for longer than the 15 s that production allows.
        patient = {"transaction.timeout.ms": 120_000}
        cluster = KafkaCluster(bootstrap, producer_config=patient)
        made = Bench(cluster, unique, time.sleep, Topics(bootstrap).delete)
    else:
        inside = InMemoryCluster()
        process = InlineProcess(inside.clock)
        made = Bench(inside.connect(process), unique, process.sleep, inside.delete_topic)
    yield made
    made.close()
