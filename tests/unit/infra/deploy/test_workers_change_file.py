"""The file that announces a change of the number of workers.

The file is valid as long as the operator's process that wrote it is alive, and its time limit is not reached.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.infra.deploy import workers_change_file as changes
from holdfast.infra.deploy.workers_change_file import WorkersChange, end_change, new_change, read_change, record_change
from holdfast.infra.paths import Paths
from holdfast.infra.system.process import identity_of


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


def test_workers_read_the_change_until_it_is_ended(paths: Paths) -> None:
    assert read_change(paths, "orders") is None
    change = new_change(("0",), ("0", "1"), 600.0)
    record_change(paths, "orders", change)
    assert read_change(paths, "orders") == change
    end_change(paths, "orders")
    assert read_change(paths, "orders") is None


def test_a_change_ends_with_the_process_of_its_operator(paths: Paths) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as operator:
        identity = identity_of(operator.pid)
        change = msgspec.structs.replace(new_change(("0",), ("0", "1"), 600.0), operator=str(identity))
        record_change(paths, "orders", change)
        assert read_change(paths, "orders") == change
        operator.kill()
    assert read_change(paths, "orders") is None


@pytest.mark.parametrize(("later_s", "valid"), [(-1.0, False), (0.0, True), (599.0, True), (600.0, False)])
def test_a_change_is_valid_between_its_times(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, later_s: float, valid: bool
) -> None:
    change = new_change(("0",), ("0", "1"), 600.0)
    record_change(paths, "orders", change)
    monkeypatch.setattr(changes.time, "time", lambda: change.since + later_s)
    assert (read_change(paths, "orders") is not None) is valid


def test_a_change_of_a_former_version_is_valid_until_its_time(paths: Paths) -> None:
    for until, valid in ((time.time() + 60, True), (time.time() - 1, False)):
        record_change(paths, "orders", WorkersChange(("0",), ("0", "1"), until))
        assert (read_change(paths, "orders") is not None) is valid
