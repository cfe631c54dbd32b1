"""Ownership of a processor: another installation uses its consumer group.

Or this installation's registry (Holdfast's database) is an older copy of itself.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.infra.settings import load_settings
from holdfast.orchestration.cli import main
from holdfast.orchestration.verbs import open_verbs
from holdfast.orchestration.world import open_registry
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Deploy, Request, Stop
from tests.parts.operated import Operated


def test_a_second_installation_may_not_deploy_a_group_that_lives_in_the_first(operated: Operated) -> None:
    operated.bring_up()
    assert operated.verbs.plan(Deploy(operated.group)).verdict.sentence.endswith("already runs in all slots.")
    with open_verbs(load_settings(home=operated.settings.home.with_name("second")), who="another") as second:
        refused = second.plan(Deploy(operated.group)).verdict
        assert isinstance(refused, Refused)
        assert f"host 127.0.0.1, client id holdfast-{operated.group}-" in refused.sentence
        assert f"`holdfast apply stop {operated.group}` in that installation" in refused.action
        operated.do(Stop(operated.group))
        assert isinstance(second.plan(Deploy(operated.group)).verdict, Ready)


def put_back(operated: Operated, copy: Path) -> None:
    """Replace the database file by the copy, and delete the other files that SQLite has kept."""
    for file in operated.settings.home.glob("registry.db*"):
        file.unlink()
    shutil.copy(copy, operated.settings.paths.registry)


def copied(operated: Operated) -> Path:
    copy = operated.settings.home / "backup.db"
    with closing(sqlite3.connect(operated.settings.paths.registry)) as here, closing(sqlite3.connect(copy)) as there:
        here.backup(there)
    return copy


def planned(operated: Operated, request: Request) -> Plan:
    """Return a plan made by a new process, because the present process still has the deleted database file open."""
    with open_verbs(operated.settings, who="a test") as verbs:
        return verbs.plan(request)


def recorded(operated: Operated) -> tuple[str, int]:
    with closing(open_registry(operated.settings)) as registry:
        found = registry.deployment(operated.group)
        assert found is not None
        return found.desired, found.generation


def test_a_registry_that_was_put_back_is_adopted_before_anything_starts(operated: Operated) -> None:
    operated.bring_up()
    copy = copied(operated)
    operated.do(Stop(operated.group))
    _, newest = recorded(operated)
    put_back(operated, copy)
    assert recorded(operated)[0] == "deployed"
    refused = planned(operated, Deploy(operated.group)).verdict
    assert isinstance(refused, Refused)
    assert f"generation {newest} (version" in refused.sentence
    assert refused.action == f"`holdfast registry adopt {operated.group}`"
    assert main(["registry", "adopt", operated.group, "--json"]) == 0
    assert recorded(operated) == ("stopped", newest + 1)
    assert isinstance(planned(operated, Deploy(operated.group)).verdict, Ready)


@pytest.mark.thorough
def test_the_changelogs_tell_it_where_the_whole_home_was_put_back(operated: Operated) -> None:
    operated.bring_up()
    copy = copied(operated)
    operated.do(Stop(operated.group))
    operated.do(Deploy(operated.group))
    operated.feed(keys=10, each=1)
    operated.processed(10)
    operated.do(Stop(operated.group))
    operated.settings.paths.deployment_mark(operated.group).unlink()
    put_back(operated, copy)
    refused = planned(operated, Deploy(operated.group)).verdict
    assert isinstance(refused, Refused)
    assert "in its changelogs stands generation" in refused.sentence
    assert main(["registry", "adopt", operated.group]) == 0
    assert recorded(operated)[0] == "stopped"
    with open_verbs(operated.settings, who="a test") as verbs:
        verbs.apply(verbs.plan(Deploy(operated.group)))
    operated.feed(keys=10, each=1)
    operated.processed(20)
    assert operated.logged() == {f"key-{number}": 2 for number in range(10)}
