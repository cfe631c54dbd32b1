"""Folder sizes as the disk counts them, and the rotation of a log while a program writes to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast.infra.spark.spills import delete_spills_of_ended, new_spill_folder
from holdfast.infra.system.process import start_mark
from holdfast.infra.system.sizes import room_of, rotate, size_on_disk

MIB = 1 << 20


def filled(file: Path, size: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(os.urandom(size))
    return file


def test_a_file_with_two_names_counts_once_and_a_hole_counts_as_nothing(tmp_path: Path) -> None:
    first = filled(tmp_path / "a" / "data", MIB)
    os.link(first, tmp_path / "a" / "again")
    with (tmp_path / "a" / "hole").open("wb") as sparse:
        sparse.truncate(100 * MIB)
    filled(tmp_path / "a" / "b" / "data", MIB)
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert 2 * MIB <= size_on_disk([tmp_path / "a"]) < 2.2 * MIB
    assert MIB <= size_on_disk([tmp_path / "a"], without=[tmp_path / "a" / "b"]) < 1.2 * MIB
    assert size_on_disk([tmp_path / "missing"]) == 0


def test_the_room_of_a_folder_that_is_not_there_yet_is_that_of_its_disk(tmp_path: Path) -> None:
    there, later = room_of(tmp_path), room_of(tmp_path / "not" / "yet")
    assert there.total_bytes == later.total_bytes > there.free_bytes > 0
    assert 0 < later.free_percent < 100


def test_a_log_is_bounded_while_a_program_appends_to_it(tmp_path: Path) -> None:
    log = tmp_path / "dagster-daemon.log"
    with log.open("ab", buffering=0) as writer:
        for number in range(20):
            writer.write(os.urandom(MIB // 4) + b"%d" % number)
            rotate(log, MIB)
            assert size_on_disk([tmp_path]) <= 2.6 * MIB
        writer.write(b"the last line")
    assert log.read_bytes().endswith(b"the last line")
    assert (tmp_path / "dagster-daemon.log.1").stat().st_size >= MIB
    assert not rotate(tmp_path / "missing.log", 1)


def test_spilled_data_of_ended_processes_is_deleted_and_that_of_living_ones_stays(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    mark = start_mark(gone.pid)
    gone.wait()
    for name in (f"{gone.pid}-{mark}", "\u00b2-7", "strange"):
        filled(tmp_path / "local" / name / "blocks", 10)
    own = new_spill_folder(tmp_path)
    assert [each.name for each in (tmp_path / "local").iterdir()] == [own.name]
    assert delete_spills_of_ended(tmp_path) == 0
