"""Group members that are not workers of this installation. Tests their detection, and which verbs they block.

A verb is an operator command that changes the processor.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.infra.kafka.records import Member
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.lifecycle.plans.facts.facts import strangers_in
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import (
    Clear,
    Compact,
    Deploy,
    OfProcessor,
    Provision,
    Restore,
    Stop,
)
from holdfast.processors.lifecycle.verbs.table import decide
from holdfast.processors.lifecycle.world.local_state import LocalFolders
from tests.unit.processors.lifecycle.worlds import orders_topology, world_of

OURS, THEIRS = "holdfast-orders-aaaa-0", "holdfast-orders-bbbb-0"
WORKER, OTHER = Member("1", OURS, "10.0.0.1"), Member("2", THEIRS, "10.0.0.2")
UNNAMED = Member("3", "rdkafka", "10.0.0.3")


@pytest.mark.parametrize(
    ("members", "alive", "strangers"),
    [
        ([WORKER], 1, []),
        ([WORKER, WORKER], 1, []),  # the second member is the worker's former process; its session has not expired yet
        ([WORKER, OTHER], 1, [OTHER]),
        ([OTHER], 0, [OTHER]),
        ([UNNAMED], 1, []),  # our worker, with a client id of its settings or of an old Holdfast that set none
        ([UNNAMED], 0, [UNNAMED]),
        ([WORKER, UNNAMED], 1, [UNNAMED]),
        ([], 0, []),
    ],
)
def test_a_member_is_a_stranger_unless_a_slot_here_accounts_for_it(
    members: list[Member], alive: int, strangers: list[Member]
) -> None:
    assert strangers_in(members, frozenset({OURS}), alive) == strangers


@pytest.mark.parametrize("request_", [Deploy("orders"), Clear("orders"), Restore("orders")])
def test_what_may_start_workers_is_refused_and_names_the_member(request_: OfProcessor) -> None:
    topology = orders_topology()
    verdict = decide(request_, world_of(topology, strangers=(str(OTHER),), members=2), topology).verdict
    assert isinstance(verdict, Refused)
    assert f"host 10.0.0.2, client id {THEIRS}" in verdict.sentence
    assert "`holdfast apply stop orders` in that installation" in verdict.action


@pytest.mark.parametrize("request_", [Stop("orders"), Compact("orders"), Provision("orders")])
def test_what_starts_no_worker_is_not_refused(request_: OfProcessor) -> None:
    topology = orders_topology()
    verdict = decide(request_, world_of(topology, strangers=(str(OTHER),), members=2), topology).verdict
    assert not isinstance(verdict, Refused)


def test_the_client_ids_of_an_installation_are_those_of_its_slots_also_of_dead_ones(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, "orders", "0")
    folder.release()
    (tmp_path / "orders" / "1").mkdir()  # a folder without an id, because no worker has used it
    folders = LocalFolders(RocksDatabases(), tmp_path, "orders", ())
    assert folders.client_ids() == {f"holdfast-orders-{folder.id}-0"}
