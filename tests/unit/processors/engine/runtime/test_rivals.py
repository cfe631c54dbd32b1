"""Two workers have the same transactional id. Each names the other in its first error, and one of them stops."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from holdfast import Application
from holdfast.infra.kafka.errors import ProducerFenced
from holdfast.processors.engine.runtime.committer import RIVAL_COUNTS_S, Committer, OwnershipLost
from holdfast.processors.testing import InlineProcess, InMemoryCluster
from holdfast.processors.testing.network import Network

ID = "holdfast-orders-c0ffee-0"


class Side:
    """One of two workers with the same transactional id, reduced to its producer and its group membership."""

    def __init__(self, cluster: InMemoryCluster, name: str) -> None:
        process = InlineProcess(cluster.clock)
        process.name = name
        application = Application(consumer_group="orders")
        application.dataframe(application.topic("placed"))
        assignment: Any = SimpleNamespace(standbys=SimpleNamespace(owners=SimpleNamespace(own="")))
        topology, options = application.topology(), application._options()
        self.committer = Committer(topology, cluster.connect(process), options, assignment, ID)

    def begin(self) -> None:
        member = self.committer.join()
        member.subscribe(["placed"], *[lambda _: None] * 3)
        self.committer.start()

    def fenced(self) -> None:
        self.committer._fenced(ProducerFenced("A newer producer took over.", action="None."))


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster(network=Network())
    made.create_topic("placed", 1)
    return made


def test_the_first_warning_names_the_other_worker_and_the_second_fencing_stops(cluster: InMemoryCluster) -> None:
    one, other = Side(cluster, "here"), Side(cluster, "there")
    one.begin()
    other.begin()
    with capture_logs() as logs, pytest.raises(OwnershipLost):
        one.fenced()
    told = f"Another worker has the transactional id {ID} of this one (process {os.getpid()} on host"
    assert told in cast(str, logs[-1]["error"])
    assert f"host there, client id {ID}" in cast(str, logs[-1]["error"])
    assert "host here" not in cast(str, logs[-1]["error"])
    assert "move the copy away" in cast(str, logs[-1]["action"])
    with pytest.raises(ProducerFenced, match="host there") as stopped:
        one.fenced()
    assert stopped.value.fields["rivals"] == f"host there, client id {ID}"


def test_a_worker_that_an_heir_fenced_has_no_rival_and_joins_again(cluster: InMemoryCluster) -> None:
    one = Side(cluster, "here")
    one.begin()
    for _ in range(3):
        with capture_logs() as logs, pytest.raises(OwnershipLost):
            one.fenced()
        assert logs[-1]["error"] == "A newer producer took over."
    with pytest.raises(ProducerFenced):
        one.fenced()


def test_a_former_membership_of_the_worker_itself_is_no_rival(cluster: InMemoryCluster) -> None:
    """After a crash, the broker keeps the worker's former membership until the session expires.

    The restarted worker must not take this former member for a second worker.
    """
    one = Side(cluster, "here")
    one.begin()
    one.committer._begun()
    member = one.committer.join()
    member.subscribe(["placed"], *[lambda _: None] * 3)
    for _ in range(2):
        with capture_logs() as logs, pytest.raises(OwnershipLost):
            one.fenced()
        assert logs[-1]["error"] == "A newer producer took over."


def test_a_rival_that_was_seen_long_ago_does_not_count(cluster: InMemoryCluster) -> None:
    one, other = Side(cluster, "here"), Side(cluster, "there")
    one.begin()
    other.begin()
    for _ in range(3):
        with pytest.raises(OwnershipLost):
            one.fenced()
        cluster.clock.advance_to(cluster.clock.monotonic() + RIVAL_COUNTS_S)
        one.committer._fenced_in_a_row = 0  # simulate that the worker has committed in the meantime
