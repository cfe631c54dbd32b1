"""Faults around a running processor: damaged disks, unknown formats, brokers that refuse, two workers, wrong clocks.

Each fault ends in a recovery, or in an error that names the repair. Afterwards every message has taken effect once.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer

from holdfast.infra.clock import SystemClock
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION, EXIT_DISK_FAILURE
from holdfast.infra.kafka.errors import ProducerFenced
from holdfast.infra.settings import load_settings
from holdfast.processors.engine.changelog.format import META_KEY, FormatUnknown, encode_value, key_prefix
from holdfast.processors.engine.changelog.names import changelog_topic, transactional_id
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from tests.mechanics.tiers import variants

KEYS = 5_000


def private_mounts() -> bool:
    """Whether this machine lets a process have private mounts."""
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return (
        shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    )


#: Ways to make the state folder unwritable. One is a file in its place. With private mounts, there are also a read-only
#: disk and a full disk.
UNWRITABLE = ["a file in its place", *(["read-only", "full"] if private_mounts() else [])]


class Running:
    """An application on a separate thread; ``result`` raises the error that ended it."""

    def __init__(self, stream, app, settings, cluster=None):
        self.stream, self.app, self.error = stream, app, None
        self._thread = threading.Thread(target=self._run, args=(cluster or app.cluster(settings), settings))

    def _run(self, cluster, settings):
        try:
            self.app.run_on(cluster, settings)
        except BaseException as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.app.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def still(self):
        """Whether the application still runs; raises the error that ended it."""
        if self.error is not None:
            raise self.error
        return self._thread.is_alive()

    def result(self):
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def committed(stream):
    return sum(stream.topics.committed_offsets(stream.group).values())


def is_exact(stream, rounds, keys):
    """Assert counts and outputs after ``rounds`` messages of each key.

    Each message must count once and be sent once.
    """
    expected = {b"k%d" % number: rounds for number in range(keys)}
    assert stream.counts() == expected
    stream.outputs_are_exact(expected)


def damage_blocks(folder: Path) -> int:
    files = list(folder.glob("*/*.sst"))
    for file in files:
        with file.open("r+b") as opened:
            opened.write(os.urandom(max(1, file.stat().st_size // 2)))
    return len(files)


# -- tests of damaged state and unknown formats ----------------------------------------------------------------------


def test_damaged_state_is_moved_aside_and_restored_at_a_start_and_while_running(stream, worker, waiting):
    one = worker()
    folder = one.paths.state / stream.group / "0"
    stream.feed_numbers(KEYS, KEYS)
    one.start()
    waiting(lambda: committed(stream) == KEYS, "the first round")
    assert one.terminate() == 0
    for manifest in folder.glob("*/MANIFEST-*"):
        manifest.write_bytes(b"not a manifest" * 10)
    stream.feed_numbers(KEYS, KEYS)
    one.start()
    waiting(lambda: committed(stream) == 2 * KEYS, "the second round")
    assert one.tail().count("moved aside and restored from its changelog") == 2
    assert len(list(folder.glob("*.corrupt"))) == 2
    assert one.terminate() == 0
    shutil.rmtree(next(folder.glob("*.corrupt")))
    one.log.write_text("")
    one.start().wait_running()
    assert damage_blocks(folder) >= 2
    stream.feed_numbers(KEYS, KEYS)
    waiting(lambda: committed(stream) == 3 * KEYS, "the third round")
    said = one.log.read_text()
    assert "state is damaged; joining the group again to restore it" in said
    assert "moved aside and restored from its changelog" in said
    assert one.terminate() == 0
    is_exact(stream, 3, KEYS)


@pytest.mark.thorough
def test_state_of_a_future_version_is_refused_and_left_alone(stream):
    stream.feed_numbers(100)
    stream.application(slot="0").run(count=100, timeout=30)
    path = next(iter(sorted((stream.state_dir / stream.group / "0").glob("*-[0-9]"))))
    store = TaskStore(RocksDatabases(), path)
    ours = store._database.get(META_KEY)
    store._database.write([(META_KEY, json.dumps({**json.loads(ours), "version": 99}).encode())])
    store.close()
    stream.feed_numbers(100)
    for _ in range(2):
        with pytest.raises(FormatUnknown, match="version 99, expected 1") as unknown:
            stream.application(slot="0").run(timeout=30)
        assert unknown.value.exit_code == EXIT_BAD_CONFIGURATION
        assert "version that wrote it" in unknown.value.action
    store = TaskStore(RocksDatabases(), path)
    store._database.write([(META_KEY, ours)])
    store.close()
    stream.application(slot="0").run(count=100, timeout=30)
    is_exact(stream, 20, 10)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (META_KEY, b'{"version":99,"inputs":{},"transaction":1,"code_version":""}'),
        (b"\x09" + key_prefix(b"k1")[1:] + b"n", encode_value(1, 0)),
        (key_prefix(b"k1") + b"n", b"\x09" + encode_value(1, 0)[1:]),
    ],
    ids=["meta record", "key", "value"],
)
def test_a_changelog_record_of_a_future_version_is_refused(stream, key, value):
    stream.feed_numbers(50)
    stream.application().run(count=50, timeout=30)
    newer = Producer({"bootstrap.servers": stream.bootstrap})
    newer.produce(changelog_topic(stream.group, "counts"), value, key, 1)
    assert newer.flush(30) == 0
    stream.delete_local_state()
    with pytest.raises(FormatUnknown) as unknown:
        stream.application().run(timeout=30)
    assert unknown.value.exit_code == EXIT_BAD_CONFIGURATION
    assert "version that wrote it" in unknown.value.action
    assert committed(stream) == 50


# -- tests of a broker that refuses writes ---------------------------------------------------------------------------


def grow(value, state):
    total = state.get("n", 0) + 1
    state.set("n", total)
    if value == "large state":
        state.set("large", incompressible())
    return [total, incompressible()] if value == "large output" else total


def incompressible():
    return random.Random(7).randbytes(150_000).hex()


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["large output", "large state"])
def test_a_record_that_is_too_large_for_its_topic_stops_at_its_message_and_goes_through_once_allowed(stream, what):
    """The topic's limit on record size is lower than the client's limit.

    So the client sends the record, and the broker refuses it.
    """
    stream.feed([(b"a", b'"small"')])
    stream.application(grow).run(count=1, timeout=30)
    topic = stream.sink if what == "large output" else changelog_topic(stream.group, "counts")
    stream.topics.alter(topic, {"max.message.bytes": "100000"})
    stream.feed([(b"a", b'"small"'), (b"a", json.dumps(what).encode()), (b"a", b'"small"')])
    with pytest.raises(ProcessingFailed, match=f"topic {topic} may have 99,872"):
        stream.application(grow).run(timeout=30)
    assert stream.counts() == {b"a": 2}, "all before the message is committed, and nothing of it"
    stream.topics.alter(topic, {"max.message.bytes": "1000000"})
    stream.application(grow).run(count=2, timeout=60)
    assert stream.counts() == {b"a": 4}
    numbers = [json.loads(record.value) for record in stream.read(stream.sink)]
    assert [number[0] if isinstance(number, list) else number for number in numbers] == [1, 2, 3, 4]


@pytest.mark.thorough
def test_a_changelog_that_refuses_every_write_for_a_while_loses_and_doubles_nothing(stream, worker, waiting):
    """The changelog topic's limit on record size is set so low that no record fits. Later it is raised again."""
    one, changelog = worker(), changelog_topic(stream.group, "counts")
    stream.feed_numbers(100)
    one.start()
    waiting(lambda: committed(stream) == 100, "the first round")
    stream.topics.alter(changelog, {"max.message.bytes": "120"})
    stream.feed_numbers(100)
    waiting(lambda: "MSG_SIZE_TOO_LARGE" in one.tail(), "commits to be refused, and the reason said")
    assert committed(stream) == 100
    stream.topics.alter(changelog, {"max.message.bytes": "1000000"})
    waiting(lambda: restarted([one], "MSG_SIZE_TOO_LARGE") and committed(stream) == 200, "the second round")
    one.wait_running()
    assert one.terminate() == 0
    is_exact(stream, 20, 10)


# -- tests of workers that compete for one slot (a worker's place with its lock) --------------------------------------


def rival(stream, slot):
    producer = Producer(
        {
            "bootstrap.servers": stream.bootstrap,
            "transactional.id": transactional_id(stream.group, stream.folder_id(slot), slot),
        }
    )
    producer.init_transactions(30)
    return producer


def test_a_worker_that_is_fenced_joins_anew_and_goes_on(stream, tmp_path, waiting):
    app = stream.application(slot="0")
    stream.feed_numbers(100)
    with Running(stream, app, load_settings(home=tmp_path)) as running:
        waiting(lambda: committed(stream) == 100, "the first round")
        for round_number in (2, 3):
            rival(stream, "0")
            stream.feed_numbers(100)
            waiting(lambda done=round_number: running.still() and committed(stream) == 100 * done, "the next round")
    running.result()
    is_exact(stream, 30, 10)


@pytest.mark.thorough
def test_a_worker_that_is_fenced_again_and_again_stops_and_says_why(stream, tmp_path, waiting):
    app = stream.application(slot="0")
    stream.feed_numbers(100)
    with Running(stream, app, load_settings(home=tmp_path)) as running:
        waiting(lambda: committed(stream) == 100, "the first round")
        while running.error is None:
            rival(stream, "0")
            stream.feed([(b"k%d" % key, b"1") for key in range(10)])
            stream.fed_more = getattr(stream, "fed_more", 0) + 1
            assert stream.fed_more < 1000
    with pytest.raises(ProducerFenced, match="newer producer took over") as fenced:
        running.result()
    assert "no two processes run with the same slot" in fenced.value.action
    left = 100 + 10 * stream.fed_more - committed(stream)
    if left:
        stream.application(slot="0").run(count=left, timeout=30)
    is_exact(stream, 10 + stream.fed_more, 10)


def test_a_second_process_with_the_same_slot_is_refused_and_the_first_goes_on(stream, worker, waiting):
    one = worker().start().wait_running()
    pid, second = one.process.pid, worker()
    second.log = one.log.with_name("second.log")
    second.start()
    assert second.wait() == EXIT_BAD_CONFIGURATION
    assert f"held by the live process {pid}" in second.tail()
    stream.feed_numbers(100)
    waiting(lambda: committed(stream) == 100, "the first one to go on")
    assert one.terminate() == 0
    is_exact(stream, 10, 10)


@pytest.mark.thorough
def test_a_worker_and_one_with_a_copy_of_its_folder_name_each_other_and_double_nothing(stream, worker, waiting):
    """The copied folder has the same id, so both workers use the same transactional id.

    They fence each other until one of them stops.
    """
    both, reason = [worker("0", "home"), worker("0", "other")], "Another worker has the transactional id"
    both[0].start().wait_running()
    (file,) = both[0].paths.home.rglob(f"{stream.group}/0/id")
    copy = both[1].paths.home / file.relative_to(both[0].paths.home)
    shutil.copytree(file.parent, copy.parent, ignore=lambda folder, names: {*names} - {"id", "identity.json"})
    both[1].start()
    told, fed = set(), 0
    while not told:
        assert fed < 100_000
        stream.feed_numbers(100)
        fed += 100
        waiting(lambda: restarted(both, reason, told) and committed(stream) == fed, "the next round")  # noqa: B023
    assert all("host 127.0.0.1, client id holdfast-" in one.tail() for one in told)
    for one in both:
        one.kill()
    is_exact(stream, fed // 10, 10)


def restarted(workers, reason, told=None):
    """Restart workers that exited for this reason, as a supervisor would. Their exits are added to ``told``."""
    for one in workers:
        if one.process.poll() is not None:
            assert reason in one.tail()
            if told is not None:
                told.add(one)
            one.start()
    return True


class WrongClock(SystemClock):
    """A wall clock that a test can set wrong."""

    def __init__(self):
        self.wrong_s = 0.0

    def time(self):
        return super().time() + self.wrong_s


@pytest.mark.thorough
@pytest.mark.parametrize("jump_s", [pytest.param(-86_400.0 * 30, id="back"), pytest.param(86_400.0 * 30, id="ahead")])
def test_a_wall_clock_that_jumps_changes_nothing(stream, tmp_path, waiting, jump_s):
    settings, clock = load_settings(home=tmp_path), WrongClock()
    for round_number in range(2):
        app = stream.application(slot="0")
        cluster = app.cluster(settings)
        cluster.clock = clock
        with Running(stream, app, settings, cluster) as running:
            for _ in range(2):
                before = committed(stream)
                stream.feed_numbers(100)
                waiting(lambda before=before: committed(stream) == before + 100, "the next round")
                clock.wrong_s += jump_s * (1 if round_number == 0 else -1) / 2
        running.result()
    stream.application(slot="0").run(timeout=3)
    is_exact(stream, 40, 10)


@pytest.mark.thorough
@pytest.mark.parametrize("why", UNWRITABLE)
def test_a_state_folder_that_can_not_be_written_stops_with_its_own_code_and_loses_nothing(stream, worker, waiting, why):
    one = worker()
    folder = one.paths.state / stream.group
    stream.feed_numbers(100)
    one.start()
    waiting(lambda: committed(stream) == 100, "the first round")
    one.wait_running()
    assert one.terminate() == 0
    stream.feed_numbers(100)
    if why == "a file in its place":
        folder.rename(folder.with_name("elsewhere"))
        folder.write_text("in the way")
        one.start()
    elif why == "read-only":
        start_in_mounts(one, f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}")
    else:
        start_in_mounts(one, f"mount -t tmpfs -o size=4k tmpfs {folder} && head -c 4096 /dev/zero >{folder}/full")
    assert one.wait() == EXIT_DISK_FAILURE, one.tail()
    assert "to a folder that the process may write to" in one.tail()
    if why == "a file in its place":
        folder.unlink()
        folder.with_name("elsewhere").rename(folder)
    one.start()
    waiting(lambda: committed(stream) == 200, "the second round")
    one.wait_running()
    assert one.terminate() == 0
    is_exact(stream, 20, 10)


@pytest.mark.parametrize("deleted", variants(["and made again", "the slot"]))
def test_a_state_folder_that_is_deleted_while_running_stops_the_worker_and_is_restored(
    stream, worker, waiting, deleted
):
    one = worker()
    stream.feed_numbers(100)
    one.start()
    waiting(lambda: committed(stream) == 100, "the first round")
    (slot,) = (one.paths.state / stream.group).iterdir()
    shutil.rmtree(slot)
    if deleted == "and made again":
        slot.mkdir()
        (slot / "lock").touch()
    stream.feed_numbers(100)
    assert one.wait() == EXIT_DISK_FAILURE, one.tail()
    assert "was deleted or replaced while it was in use" in one.tail()
    one.start()
    waiting(lambda: committed(stream) == 200, "the second round")
    assert one.terminate() == 0
    is_exact(stream, 20, 10)


@pytest.mark.skipif(
    "full" not in UNWRITABLE, reason="no process here may mount; a bound on file size stands in elsewhere"
)
def test_a_disk_that_fills_up_while_running_stops_with_its_own_code_and_loses_nothing(stream, worker, waiting):
    one = worker()
    folder = one.paths.state / stream.group
    folder.mkdir(parents=True)
    start_in_mounts(one, f"mount -t tmpfs -o size=1m tmpfs {folder}")
    one.wait_running()
    stream.feed_numbers(40_000, 40_000)
    assert one.wait() == EXIT_DISK_FAILURE, one.tail()
    assert "Free space on the disk" in one.tail()
    assert not list(folder.iterdir()), "the full disk is gone with its process"
    one.start()
    waiting(lambda: committed(stream) == 40_000, "all to be committed")
    one.wait_running()
    assert one.terminate() == 0
    is_exact(stream, 1, 40_000)


@pytest.mark.thorough
@pytest.mark.skipif(
    "full" not in UNWRITABLE, reason="no process here may mount; a bound on file size stands in elsewhere"
)
def test_a_restore_on_a_disk_that_is_too_small_says_so_and_goes_through_where_there_is_room(stream, worker, waiting):
    one = worker()
    one.environment["HOLDFAST_CHECKPOINTS__ENABLED"] = "false"
    folder = one.paths.state / stream.group
    stream.feed_numbers(60_000, 60_000)
    one.start()
    waiting(lambda: committed(stream) == 60_000, "all to be committed")
    one.wait_running()
    assert one.terminate() == 0
    shutil.rmtree(folder)
    folder.mkdir()
    start_in_mounts(one, f"mount -t tmpfs -o size=1m tmpfs {folder}")
    assert one.wait() == EXIT_DISK_FAILURE, one.tail()
    assert "Free space on the disk" in one.tail()
    one.start()
    one.wait_running()
    assert one.terminate() == 0
    is_exact(stream, 1, 60_000)


def start_in_mounts(worker, mounts):
    """Start the worker with private mounts, which only this process sees and which end with it."""
    command = [sys.executable, "-m", "holdfast.processors", "--processor", worker.stream.group, "--slot", worker.slot]
    with worker.log.open("ab") as log:
        worker.process = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", f'{mounts} && exec "$@"', "sh", *command],
            env=worker.environment,
            stdout=log,
            stderr=log,
            cwd=worker.paths.home,
        )
    return worker
