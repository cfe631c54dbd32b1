"""Tests the simulated disk: it keeps data and fails in the same ways as a real disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast.processors.engine.state.databases.database import DatabaseCorrupt
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.process import InlineProcess
from tests.simulation.disk import Damage, SimulatedDisk

PATH = Path("/state/totals/0/orders-0")


def process(name: str = "a") -> InlineProcess:
    return InlineProcess(VirtualClock(), name)


def test_batches_are_applied_in_order_and_read_back_after_reopening() -> None:
    view = SimulatedDisk().attach(process())
    database = view.open(PATH)
    database.write([(b"a", b"1"), (b"b", b"2"), (b"a", None)])
    database.write([(b"c", b"3")])
    database.close()
    again = view.open(PATH)
    assert again.get(b"a") is None
    assert again.get_many([b"b", b"c", b"x"]) == [b"2", b"3", None]
    assert list(again.items(b"b")) == [(b"b", b"2"), (b"c", b"3")]
    assert list(again.items(b"c")) == [(b"c", b"3")]


def test_a_dead_machine_loses_a_suffix_of_what_was_not_synced() -> None:
    disk = SimulatedDisk()
    database = disk.attach(process()).open(PATH)
    database.write([(b"a", b"1")])
    disk.sync(PATH)
    for value in (b"2", b"3", b"4"):
        database.write([(b"a", value), (b"n" + value, value)])
    assert disk.unsynced(PATH) == 3
    disk.lose_unsynced(PATH, keep=1)
    assert disk.content(PATH) == {b"a": b"2", b"n2": b"2"}
    disk.lose_unsynced(PATH, keep=0)
    assert disk.content(PATH) == {b"a": b"1"}


def test_an_open_database_is_taken_until_it_is_closed_or_its_process_dies() -> None:
    disk = SimulatedDisk()
    owner, other = process("a"), process("b")
    disk.attach(owner).open(PATH).close()
    disk.attach(owner).open(PATH)
    with pytest.raises(OSError, match="EWOULDBLOCK|EAGAIN"):
        disk.attach(other).open(PATH)
    with pytest.raises(OSError, match="EBUSY"):
        disk.attach(other).delete(PATH)
    disk.release(owner)
    disk.attach(other).open(PATH).write([(b"a", b"1")])
    assert disk.content(PATH) == {b"a": b"1"}


def test_a_full_disk_refuses_writes_and_takes_them_again_when_there_is_room() -> None:
    disk = SimulatedDisk()
    database = disk.attach(process()).open(PATH)
    disk.full = True
    with pytest.raises(OSError, match="ENOSPC") as refused:
        database.write([(b"a", b"1")])
    assert refused.value.errno == errno.ENOSPC
    disk.full = False
    database.write([(b"a", b"2")])
    assert disk.content(PATH) == {b"a": b"2"}


def test_a_torn_write_is_gone_and_nothing_is_written_after_it() -> None:
    disk = SimulatedDisk()
    view = disk.attach(process())
    database = view.open(PATH)
    database.write([(b"a", b"1")])
    disk.short_writes = 1
    for _ in range(2):
        with pytest.raises(OSError, match="EIO"):
            database.write([(b"a", b"2"), (b"b", b"2")])
    database.close()
    view.open(PATH).write([(b"c", b"3")])
    assert disk.content(PATH) == {b"a": b"1", b"c": b"3"}


@pytest.mark.parametrize("damage", [Damage.AT_OPEN, Damage.AT_READ])
def test_damage_shows_until_the_database_is_moved_aside(damage: Damage) -> None:
    disk = SimulatedDisk()
    view = disk.attach(process())
    view.open(PATH).close()
    disk.corrupt(PATH, damage)
    with pytest.raises(DatabaseCorrupt):
        view.open(PATH).get(b"a")
    disk.release(view._process)
    aside = PATH.with_name("aside")
    view.move(PATH, aside)
    assert view.exists(aside)
    assert view.open(PATH).get(b"a") is None


def test_a_checkpoint_is_a_copy() -> None:
    disk = SimulatedDisk()
    database = disk.attach(process()).open(PATH)
    database.write([(b"a", b"1")])
    database.checkpoint(PATH.with_name("copy"))
    database.write([(b"a", b"2")])
    assert disk.content(PATH.with_name("copy")) == {b"a": b"1"}
