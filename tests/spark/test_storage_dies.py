"""Stores, disks and drivers that die during a snapshot: the published table stays intact, and a retry succeeds."""

import shutil
import subprocess
import threading
import time

import pytest

from holdfast.infra.settings import load_settings
from holdfast.infra.spark.failures import WarehouseFailed
from holdfast.infra.warehouse.catalog import open_catalog, read_table
from holdfast.processors.snapshots.names import table_name
from tests.kafka.object_store import S3Server
from tests.spark.driver import Attached, Driver

pytestmark = pytest.mark.usefixtures("tuned_jvms")

PATIENCE_S = 240.0


def private_mounts():
    """Whether this machine lets a process have private mounts."""
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return (
        shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    )


needs_mounts = pytest.mark.skipif(not private_mounts(), reason="no process here may mount")


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited for: {what}"
        time.sleep(0.005)
    return found


def published(settings, processor):
    """The published rows, read without Spark."""
    arrow = read_table(settings, *table_name(processor, "s").split(".", 2)[1:])
    return dict(zip(arrow["message_key"].to_pylist(), arrow["json"].to_pylist(), strict=True))


def can_be_read(settings, processor):
    """Whether the published table can be read."""
    try:
        return bool(published(settings, processor))
    except OSError:  # a store that has just started may answer requests before it is ready
        return False


@pytest.fixture
def s3(tmp_path):
    """An S3 server that the test may stop."""
    server = S3Server(tmp_path / "s3")
    yield server.start()
    server.stop()


@pytest.fixture
def local_settings(tmp_path):
    return load_settings(home=tmp_path / "home")


@pytest.mark.thorough
def test_an_object_store_that_goes_away_in_mid_write(remote_settings, s3, session_for, broker, unique):
    remote = Attached(broker, unique("gone"), session_for(remote_settings))
    remote.write(0, [(b"a", 1), (b"b", 2)])
    remote.snapshot()
    remote.write(0, [(b"a", 3)])
    pointer = open_catalog(remote_settings)
    name = tuple(table_name(remote.processor, "s").split(".", 2)[1:])
    before = pointer.load_table(name).metadata_location
    failures = []

    def write():
        try:
            remote.snapshot(plan)
        except Exception as failure:
            failures.append(failure)

    plan = remote.plan()
    writing = threading.Thread(target=write)
    writing.start()
    # the first commit creates the snapshot's branch; rows are written after it
    wait_for(lambda: pointer.load_table(name).metadata_location != before, "the first commit")
    s3.stop()
    writing.join(PATIENCE_S * 4)
    assert len(failures) == 1
    assert isinstance(failures[0], WarehouseFailed), failures
    assert "object store run" in failures[0].action
    s3.start()
    wait_for(lambda: can_be_read(remote_settings, remote.processor), "the store to answer again")
    assert published(remote_settings, remote.processor) == {"a": "1", "b": "2"}
    remote.spark = session_for(remote_settings)
    remote.snapshot(plan)
    assert published(remote_settings, remote.processor) == {"a": "3", "b": "2"}


@pytest.fixture
def mounted(broker, unique, tmp_path):
    """A driver whose warehouse is a 64 MiB file system with one snapshot, and a shell that sees the driver's mounts."""
    folder = tmp_path / "home" / "warehouse"
    folder.mkdir(parents=True)
    environment = {"HOLDFAST_HOME": str(tmp_path / "home"), "HOLDFAST_SPARK__MASTER": "local[2]"}
    mounts = f"mount -t tmpfs -o size=64m tmpfs {folder}"
    driver = Driver(broker, unique("mounted"), environment, tmp_path / "log", mounts)
    driver.do("write", partition=0, entries=[["a", 1], ["b", 2]])
    assert driver.do("snapshot", name="first")["answer"]["committed"]
    driver.do("write", partition=0, entries=[["a", 3]])

    def shell(command):
        assert "answer" in (told := driver.do("shell", command=command)), told

    yield driver, folder, shell
    assert driver.end() == 0, (tmp_path / "log").read_text()[-3000:]


@needs_mounts
@pytest.mark.thorough
def test_a_folder_that_is_read_only_in_mid_snapshot_and_full_at_any_moment(mounted):
    driver, folder, shell = mounted
    driver.do("plan", name="second")
    # Mount the folder read-only over itself. The original cannot be remounted, because files in it are open for
    # writing.
    shell(f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}")
    told = driver.do("snapshot", name="second")["error"]
    assert told["type"] == "WarehouseFailed", told
    assert "Give this user write access" in told["action"], told
    shell(f"umount {folder}")
    assert driver.do("table", tag=None)["answer"] == {"a": "1", "b": "2"}
    assert driver.do("snapshot", name="second")["answer"]["rows"] == 2
    assert driver.do("table", tag=None)["answer"] == {"a": "3", "b": "2"}

    driver.do("write", partition=0, entries=[["c", 4]])
    driver.do("plan", name="third")
    filler, failed = folder / "filler", 0
    # Free 0 to 128 KiB, so that the writes of data files, manifests and metadata files each fail in turn.
    for kibibytes in (0, 12, 32, 64, 128):
        shell(f"rm -f {filler}; dd if=/dev/zero of={filler} bs=4k 2>/dev/null || true")
        shell(f"truncate -s -{kibibytes}K {filler}")
        told = driver.do("snapshot", name="third")
        if "answer" in told:
            break
        failed += 1
        assert told["error"]["type"] == "WarehouseFailed", told
        assert "Make room" in told["error"]["action"], told
        assert driver.do("table", tag=None)["answer"] == {"a": "3", "b": "2"}
    assert failed
    shell(f"rm -f {filler}")
    assert driver.do("snapshot", name="third")["answer"]["rows"] == 3
    assert driver.do("table", tag=None)["answer"] == {"a": "3", "b": "2", "c": "4"}


# Kill the driver after this number of commits to the table: before any commit, after the write, after the publish.
@pytest.mark.thorough
@pytest.mark.parametrize("commits", [*(pytest.param(number, marks=pytest.mark.thorough) for number in (0, 2)), 3])
def test_a_driver_that_is_killed_after_each_commit(commits, broker, unique, tmp_path, session_for):
    settings = load_settings(home=tmp_path / "home")
    processor = unique("killed")
    environment = {"HOLDFAST_HOME": str(settings.home), "HOLDFAST_SPARK__MASTER": "local[2]"}
    own = Attached(broker, processor, session_for(settings))
    own.write(0, [(b"a", 1), (b"b", 2)])
    own.snapshot()
    driver = Driver(broker, processor, environment, tmp_path / "log")
    driver.do("write", partition=0, entries=[["a", 3]])
    driver.do("plan", name="second")
    catalog = open_catalog(settings)
    name = tuple(table_name(processor, "s").split(".", 2)[1:])
    seen = [catalog.load_table(name).metadata_location]

    def enough():
        now = catalog.load_table(name).metadata_location
        if now != seen[-1]:
            seen.append(now)
        return len(seen) > commits or (driver.process.poll() is not None)

    driver.ask("snapshot", name="second")
    wait_for(enough, f"commit {commits}")
    driver.kill()
    # the table shows the former version or the new one, complete
    assert published(settings, processor) in ({"a": "1", "b": "2"}, {"a": "3", "b": "2"})
    own = Attached(broker, processor, session_for(settings))
    own.snapshot()
    assert own.table() == {"a": "3", "b": "2"}
    assert not own.snapshot().committed


@pytest.mark.thorough
def test_a_session_of_a_jvm_that_was_killed_says_so_and_is_ended(local_settings, broker, unique, tmp_path):
    environment = {"HOLDFAST_HOME": str(local_settings.home), "HOLDFAST_SPARK__MASTER": "local[2]"}
    driver = Driver(broker, unique("jvm"), environment, tmp_path / "log")
    driver.do("write", partition=0, entries=[["a", 1]])
    listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(driver.pid)], capture_output=True, text=True)
    jvm = next(int(line.split()[0]) for line in listed.stdout.splitlines() if line.split()[1] == "java")
    subprocess.run(["kill", "-9", str(jvm)], check=True)
    told = driver.do("snapshot", name="first")["error"]
    assert told["type"] == "SparkUnavailable", told
    told = driver.do("maintain")["error"]
    assert told["type"] == "SparkUnavailable", told
    assert driver.end() == 0
