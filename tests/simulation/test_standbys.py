"""Standbys in the simulation: the records that a failover replays, and standbys of lost or truncated changelogs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.infra.kafka.records import Partition
from holdfast.infra.settings import Settings
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.checkpoints.manifest import Manifest
from holdfast.processors.engine.runtime.ownership.standby import StandbyPhase
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.testing import InlineProcess
from holdfast.processors.testing.groups import Assignor
from tests.simulation.disk import Damage
from tests.simulation.schedule import Schedule, plain_schedule
from tests.simulation.scheduler import signals_kept
from tests.simulation.small_portions import tuned
from tests.simulation.workload import GROUP
from tests.simulation.world import Machine, World

PATIENCE_S = 120.0
#: This seed's workload has more than a hundred messages in each of two partitions.
SEED = 7


def schedule(**chosen: Any) -> Schedule:
    """A schedule with two processes, one standby for each task, and no faults."""
    plain = replace(
        plain_schedule(SEED),
        exactly_once=True,
        dead_letters=False,
        partitions=2,
        stores=1,
        processes=2,
        assignor="range",
    )
    tuned_to = {
        "pieces": 0,
        "poll_max": 40,
        "restore_step": 10,
        "switching": 0.0,
        "retention_s": 86_400.0,
        "faults": (),
    }
    return replace(plain, standby_replicas=1, commit_every=1, **{**tuned_to, **chosen})


@contextmanager
def running(folder: Path, chosen: Schedule, machines: int = 2) -> Iterator[World]:
    """A simulation in which the first ``machines`` machines have been started."""
    world = World(chosen, folder, Settings())
    try:
        with signals_kept(), tuned(chosen):
            for machine in world.machines[:machines]:
                machine.wanted = True
                machine.start()
            yield world
    finally:
        world.simulation.end()


def wait(world: World, done: Callable[[], bool]) -> None:
    world.simulation.run_until(lambda: world.broken is not None or done(), PATIENCE_S)
    assert world.broken is None


def feed(world: World, part: float) -> None:
    for partition, messages in enumerate(world.workload.messages):
        world.feed(partition, int(len(messages) * part))


def committed(world: World) -> bool:
    offsets = world.cluster.committed_offsets(GROUP)
    return all((offsets.get(place) or 0) >= end for place, end in world._ends.items())


def tasks(machine: Machine) -> dict[str, Task]:
    worker = machine.app._worker if machine.app is not None else None
    found = [] if worker is None else worker.assignment.tasks
    return {task.name: task for task in found if task.phase is TaskPhase.RUNNING}


def standbys(machine: Machine) -> dict[str, dict[str, Any]]:
    worker = machine.app._worker if machine.app is not None else None
    return {} if worker is None else {told["task"]: told for told in worker.assignment.standbys.told()}


def restores(machine: Machine) -> bool:
    """Whether a machine replays the changelog of a task that was assigned to it."""
    worker = machine.app._worker if machine.app is not None else None
    return worker is not None and bool(worker.assignment.restoring)


def caught_up(world: World, name: str, *machines: Machine) -> bool:
    """Whether one of the machines has a standby of the task, and this standby has reached the changelog's end."""
    end = world.cluster.log_end(Partition(world.changelogs[0], int(name[-1])))
    following = StandbyPhase.FOLLOWING.value
    found = [standbys(machine).get(name) for machine in machines]
    return any(told and told["phase"] == following and told["stores"]["first"]["position"] == end for told in found)


def idle(world: World) -> Machine:
    """Return the machine without a task, out of three machines. It has the standby of the second partition."""
    wait(world, lambda: sum(len(tasks(machine)) for machine in world.machines) == 2)
    wait(world, lambda: any(standbys(machine) and not tasks(machine) for machine in world.machines))
    return next(machine for machine in world.machines if not tasks(machine))


def checkpointed(world: World) -> set[str]:
    """The tasks that have a checkpoint at the group's committed offsets."""
    offsets = {place.number: offset for place, offset in world.cluster.committed_offsets(GROUP).items()}
    found = [Manifest.decode(world.store.objects[name]) for name in world.checkpoints.manifests()]
    return {each.task for each in found if list(each.meta.inputs.values()) == [offsets.get(int(each.task[-1]))]}


def kill(world: World, machine: Machine) -> None:
    machine.wanted = False
    assert machine.process is not None
    machine.process.kill()
    machine.disk.release(machine.process)
    world.look_at(machine)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_a_failover_replays_the_tail_only(tmp_path: Path, assignor: Assignor) -> None:
    with running(tmp_path, schedule(assignor=assignor)) as world:
        one, other = world.machines[:2]
        wait(world, lambda: len(tasks(one)) == len(tasks(other)) == 1)
        feed(world, 0.8)
        wait(world, lambda: committed(world))
        (moved,) = tasks(one)
        wait(world, lambda: caught_up(world, moved, other))
        changelog = Partition(world.changelogs[0], int(moved[-1]))
        whole = sum(1 for number, _ in world.cluster.read(changelog.topic) if number == changelog.number)
        kill(world, one)
        feed(world, 1.0)
        wait(world, lambda: len(tasks(other)) == 2 and committed(world))
        restored = tasks(other)[moved].restored
        assert whole > 20
        assert restored <= 1, f"{restored} records replayed of {whole}"
        assert standbys(other) == {}


def test_a_new_standby_begins_with_a_checkpoint_and_replays_the_tail(tmp_path: Path) -> None:
    with running(tmp_path, schedule(checkpoint_s=0.2, spares=5), machines=1) as world:
        one, other = world.machines[:2]
        feed(world, 1.0)
        wait(world, lambda: len(tasks(one)) == 2 and committed(world))
        wait(world, lambda: len(checkpointed(world)) == 2)
        other.wanted = True
        other.start()
        wait(world, lambda: len(tasks(one)) == len(tasks(other)) == 1 and len(standbys(other)) == 1)
        (followed,) = standbys(other)
        wait(world, lambda: caught_up(world, followed, other))
        told = standbys(other)[followed]
        changelog = Partition(world.changelogs[0], int(followed[-1]))
        whole = sum(1 for number, _ in world.cluster.read(changelog.topic) if number == changelog.number)
        assert told["checkpoint"] is not None
        assert told["records"] < whole / 2, f"{told['records']} records replayed of {whole}"
        kill(world, one)  # after this kill, the standby that was filled from a checkpoint takes over the task
        wait(world, lambda: len(tasks(other)) == 2)


def test_a_standby_without_a_checkpoint_that_fits_follows_the_changelog(tmp_path: Path) -> None:
    with running(tmp_path, schedule(checkpoint_s=0.2, spares=5), machines=1) as world, capture_logs() as logs:
        one, other = world.machines[:2]
        feed(world, 1.0)
        wait(world, lambda: len(tasks(one)) == 2 and committed(world) and len(checkpointed(world)) == 2)
        for name in list(world.store.objects):
            if "/manifests/" not in name:
                world.store.objects[name] = b"damaged"
        other.wanted = True
        other.start()
        wait(world, lambda: len(tasks(one)) == len(tasks(other)) == 1 and len(standbys(other)) == 1)
        (followed,) = standbys(other)
        wait(world, lambda: caught_up(world, followed, other))
        assert standbys(other)[followed]["checkpoint"] is None
        assert {each["task"] for each in logs if each["event"] == "a checkpoint is not used"} >= {followed}


def test_a_task_that_goes_is_followed_by_who_had_it(tmp_path: Path) -> None:
    with running(tmp_path, schedule(), machines=1) as world:
        one, other = world.machines[:2]
        feed(world, 0.5)
        wait(world, lambda: len(tasks(one)) == 2 and committed(world))
        other.wanted = True
        other.start()
        wait(world, lambda: len(tasks(one)) == len(tasks(other)) == 1)
        feed(world, 1.0)
        (given,) = tasks(other)
        wait(world, lambda: committed(world) and caught_up(world, given, one))


def test_a_standby_whose_changelog_lost_its_tail_is_followed_from_the_beginning(tmp_path: Path) -> None:
    with running(tmp_path, schedule()) as world, capture_logs() as logs:
        one, other = world.machines[:2]
        feed(world, 1.0)
        wait(world, lambda: len(tasks(one)) == 1 and committed(world))
        (name,) = tasks(one)
        wait(world, lambda: caught_up(world, name, other))
        before = standbys(other)[name]["records"]
        changelog = Partition(world.changelogs[0], int(name[-1]))
        world.cluster.truncate(changelog, end=world.cluster.log_end(changelog) // 2)
        wait(world, lambda: caught_up(world, name, other) and standbys(other)[name]["records"] > before)
        assert any("was truncated" in entry.get("why", "") for entry in logs)
        assert len(tasks(one)) == len(tasks(other)) == 1, "whoever works goes on"


def test_a_standby_never_replaces_the_state_that_a_task_left_whole(tmp_path: Path) -> None:
    """A standby keeps its local state if its changelog was created again, because no other copy of the state exists.

    The changelog's new owner waits for an open transaction, so it has not restored any state yet.
    """
    with running(tmp_path, schedule(partitions=1), machines=0) as world:
        one, other = world.machines[:2]
        other.wanted = True
        other.start()
        feed(world, 0.5)
        wait(world, lambda: len(tasks(other)) == 1 and committed(world))
        kill(world, other)
        (path,) = [path for path in other.disk.paths if path.name == "orders-0"]
        whole = dict(other.disk.content(path))
        (changelog,) = world.changelogs
        world.cluster.delete_topic(changelog)
        world.cluster.create_topic(changelog, config={"cleanup.policy": "compact"})
        world.cluster.open_foreign_transaction(changelog, 0, [(key_prefix(b"k") + b"n", encode_value(9, 0))])
        one.wanted = True
        one.start()
        wait(world, lambda: restores(one))
        other.wanted = True
        other.start()
        wait(world, lambda: "was recreated" in (standbys(other).get("orders-0", {}).get("error") or ""))
        assert other.disk.content(path) == whole


def test_a_standby_of_a_changelog_without_its_head_waits_and_stops_nobody(tmp_path: Path) -> None:
    """A standby waits if the head of its changelog is missing, and no worker stops.

    The rest of such a changelog is only a part of the state. A database that is restored from it would wrongly count as
    complete.
    """
    with running(tmp_path, schedule()) as world:
        one, other = world.machines[:2]
        feed(world, 0.5)
        wait(world, lambda: len(tasks(one)) == len(tasks(other)) == 1 and committed(world))
        kill(world, other)
        wait(world, lambda: len(tasks(one)) == 2 and committed(world))
        changelog = Partition(world.changelogs[0], 0)
        world.cluster.truncate(changelog, start=world.cluster.log_end(changelog) - 3)
        for path in [path for path in other.disk.paths if path.name == "orders-0"]:
            other.disk.attach(InlineProcess(world.clock)).delete(path)
        other.wanted = True
        other.start()
        wait(world, lambda: "truncated" in (standbys(other).get("orders-0", {}).get("error") or ""))
        feed(world, 1.0)
        wait(world, lambda: committed(world) and len(tasks(one)) == len(tasks(other)) == 1)
        assert standbys(other)["orders-0"]["phase"] == StandbyPhase.WAITING.value


def test_a_standby_behind_by_more_than_the_retention_is_followed_from_the_beginning(tmp_path: Path) -> None:
    with running(tmp_path, schedule(retention_s=20.0), machines=3) as world, capture_logs() as logs:
        absent = idle(world)
        feed(world, 0.5)
        wait(world, lambda: committed(world) and caught_up(world, "orders-1", absent))
        kill(world, absent)
        feed(world, 1.0)
        until = world.clock.monotonic() + 60.0
        world.clock.call_at(until, lambda: None)
        wait(world, lambda: committed(world) and world.clock.monotonic() >= until)
        for number in range(2):
            world.compact(Partition(world.changelogs[0], number))
        absent.wanted = True
        absent.start()
        wait(world, lambda: caught_up(world, "orders-1", absent))
        dropped = [entry for entry in logs if entry["event"].startswith("a standby is dropped")]
        assert ["deletes older than 20 s" in entry["why"] for entry in dropped] == [True]
        world.look_at(absent)
        assert world.broken is None


def test_a_damaged_or_full_disk_of_a_standby_stops_nobody(tmp_path: Path) -> None:
    with running(tmp_path, schedule(), machines=3) as world:
        follower = idle(world)
        feed(world, 0.5)
        wait(world, lambda: committed(world) and caught_up(world, "orders-1", follower))
        follower.disk.full = True
        feed(world, 0.8)
        wait(world, lambda: committed(world) and "can't be written" in (standbys(follower)["orders-1"]["error"] or ""))
        follower.disk.full = False
        wait(world, lambda: caught_up(world, "orders-1", follower))
        kill(world, follower)
        (path,) = [path for path in follower.disk.paths if path.name == "orders-1"]
        follower.disk.corrupt(path, Damage.AT_OPEN)
        follower.wanted = True
        follower.start()
        feed(world, 1.0)
        wait(world, lambda: committed(world) and caught_up(world, "orders-1", follower))
        assert world.exits == []
