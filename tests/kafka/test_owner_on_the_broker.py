"""Commands to a worker over HTTP, on a real broker: count, export, clear, adopt (take over another store's content).

Another command changes the worker's positions in the input.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import AdminClient

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.processors.engine.changelog.config import CHANGELOG_CONFIG
from holdfast.processors.engine.changelog.format import META_KEY, split_key
from holdfast.processors.engine.runtime.owner_commands.commands import CommandFailed, CommandRefused, CommandWrong
from tests.kafka.conftest import Stream, Worker
from tests.mechanics.tiers import variants

KEYS = [b"k%d" % number for number in range(10)]


def post(worker: Any, page: str, body: bytes, token: str | None = None) -> httpx.Response:
    endpoint = json.loads(worker.paths.endpoint(worker.stream.group, worker.slot).read_text())
    headers = {"Authorization": f"Bearer {token or endpoint['token']}"}
    return httpx.post(endpoint["url"] + page, content=body, headers=headers, timeout=60, trust_env=False)


def processed(worker: Any, count: int) -> Callable[[], bool]:
    def so_many() -> bool:
        status = worker.client.status()
        if status is None or status.records["processed"] != count or status.lag != 0:
            return False
        return all(at.committed == at.position for task in status.tasks for at in task.inputs.values())

    return so_many


def ends(stream: Any) -> dict[str, dict[int, int]]:
    return {stream.source: dict(stream.topics.end_offsets(stream.source, committed=False))}


@pytest.mark.thorough
def test_a_worker_that_begins_paused_reads_nothing_before_it_is_told_to(
    stream: Any, worker: Any, waiting: Callable[..., Any]
) -> None:
    stream.feed_numbers(50)
    one = worker()
    one.flags = ("--paused", "--restore-from", "changelog")
    one.start().wait_running()
    began = one.client.status()
    assert (began.paused, began.maintenance) == (True, None)
    waiting(lambda: one.client.status().heartbeat_at > began.heartbeat_at + 2, "some turns of its loop")
    # A worker that joins later takes half of the partitions. It is paused as well.
    two = worker("1")
    two.flags = ("--paused",)
    two.start().wait_running()
    waiting(lambda: len(two.client.status().tasks) == 1 and len(one.client.status().tasks) == 1, "a task each")
    assert stream.counts() == {}
    assert one.client.status().records["processed"] == two.client.status().records["processed"] == 0
    # The first worker gets the other partitions back, and does not read them either, because it is still paused.
    assert two.terminate() == 0
    waiting(lambda: len(one.client.status().tasks) == stream.partitions, "both tasks")
    one.wait_running()
    assert one.client.status().records["processed"] == 0
    one.client.resume()
    waiting(processed(one, 50), "the input")
    assert one.terminate() == 0
    assert stream.counts() == dict.fromkeys(KEYS, 5)


@pytest.mark.thorough
def test_what_is_cleared_begins_anew_while_the_worker_runs(
    stream: Any, worker: Any, waiting: Callable[..., Any]
) -> None:
    one = worker().start().wait_running()
    stream.feed_numbers(100)
    waiting(processed(one, 100), "100 records")

    assert one.client.count("counts", all=True)["keys"] == 10
    assert one.client.count("counts", prefix="k")["keys"] == 10
    assert one.client.count("counts", keys=["k3", b"k4", b"\xff", "unknown"])["keys"] == 2
    cleared = one.client.clear("counts", keys=["k3", b"k4", "unknown"], export=True)
    assert (cleared["keys"], cleared["entries"], cleared["partitions"]) == (2, 2, [0, 1])
    content = Path(cleared["path"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == cleared["sha256"]
    lines = sorted((json.loads(line) for line in content.splitlines()), key=lambda line: line["key"])
    assert [(line["key"], line["state"], line["value"]) for line in lines] == [("k3", "n", 10), ("k4", "n", 10)]

    stream.feed_numbers(100)
    waiting(processed(one, 200), "what came after")
    expected = dict.fromkeys(KEYS, 20) | {b"k3": 10, b"k4": 10}
    assert stream.counts() == expected
    exported = one.client.export("counts", all=True, partitions=[0, 1])
    assert len(Path(exported["path"]).read_bytes().splitlines()) == exported["entries"] == 10
    assert one.terminate() == 0


def test_a_clear_with_a_name_is_carried_out_once_also_by_the_next_worker_on_another_machine(
    stream: Any, worker: Any, waiting: Callable[..., Any]
) -> None:
    one = worker().start().wait_running()
    stream.feed_numbers(100)
    waiting(processed(one, 100), "100 records")
    assert one.client.clear("counts", keys=["k3", "k4"], once="apply 7, stage 2")["keys"] == 2
    stream.feed_numbers(100)
    waiting(processed(one, 200), "what came after")
    expected = dict.fromkeys(KEYS, 20) | {b"k3": 10, b"k4": 10}
    # the sender of the command died before it saw the result, so the command is repeated
    assert one.client.clear("counts", keys=["k3", "k4"], once="apply 7, stage 2")["keys"] == 0
    assert stream.counts() == expected
    # the worker's machine is lost; the next worker learns from the changelog or a checkpoint that the command is
    # finished
    for again in ("changelog", "anything"):
        one.client.checkpoint()
        one.kill()
        shutil.rmtree(one.paths.state)
        one.flags = ("--restore-from", again)
        one.start().wait_running()
        assert one.client.clear("counts", prefix="k", once="apply 7, stage 2")["keys"] == 0
    assert stream.counts() == expected
    assert one.client.clear("counts", keys=["k3"], once="apply 8, stage 2")["keys"] == 1
    assert one.client.clear("counts", keys=["k4"])["keys"] == 1
    assert one.terminate() == 0
    assert stream.counts() == {key: count for key, count in expected.items() if key not in (b"k3", b"k4")}


@pytest.mark.thorough
def test_a_store_is_built_anew_from_another_position(stream: Any, worker: Any, waiting: Callable[..., Any]) -> None:
    one = worker().start().wait_running()
    stream.feed_numbers(100)
    waiting(processed(one, 100), "100 records")
    with pytest.raises(CommandRefused, match="The worker is not paused"):
        one.client.position(ends(stream))
    one.client.pause()
    beginning = {stream.source: dict.fromkeys(range(stream.partitions), 0)}
    assert one.client.clear("counts", all=True, positions=beginning)["keys"] == 10
    assert stream.counts() == {}
    # If the worker is killed now, it restarts with the state and the offsets that were set, even with an empty disk.
    one.kill()
    shutil.rmtree(one.paths.state)
    one.flags = ("--paused",)
    one.start().wait_running()
    assert {at.position for task in one.client.status().tasks for at in task.inputs.values()} == {0}
    one.client.resume()
    waiting(processed(one, 100), "the input, again")
    assert stream.counts() == dict.fromkeys(KEYS, 10)

    one.client.pause()  # move the positions forward: the messages before the new positions are never counted
    stream.feed_numbers(50)
    one.client.position(ends(stream))
    one.client.resume()
    stream.feed_numbers(10)
    waiting(processed(one, 110), "what came after")
    assert one.terminate() == 0
    assert stream.counts() == dict.fromkeys(KEYS, 11)


@pytest.mark.thorough
def test_nothing_comes_back_from_a_cold_restore_after_real_compaction(
    stream: Any, worker: Any, waiting: Callable[..., Any]
) -> None:
    changelog = f"{stream.group}-counts-changelog"
    at_once = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.0", "min.compaction.lag.ms": "0"}
    one = worker().start().wait_running()
    stream.topics.alter(changelog, {**at_once, "max.compaction.lag.ms": "1000", "delete.retention.ms": "3000"})
    stream.feed_numbers(100)
    waiting(processed(one, 100), "100 records")
    gone = {b"k2", b"k5", b"k7"}
    one.client.clear("counts", keys=sorted(gone))
    fed = [100]

    def compacted() -> bool:
        """Whether compaction has removed all values and tombstones of k3 and k4. New records make the log roll."""
        stream.feed([(b"k0", b"0"), (b"k1", b"0"), (b"k3", b"0"), (b"k4", b"0")])
        fed[0] += 4
        records = [
            record
            for number, end in stream.topics.end_offsets(changelog, committed=False).items()
            for record in read_range(stream.bootstrap, changelog, number, 0, end)
        ]
        keys = {split_key(record.key or b"")[0] for record in records if record.key != META_KEY}
        return not keys & gone

    deadline_s = 240.0
    waiting_long(compacted, deadline_s)
    stream.topics.alter(changelog, {"delete.retention.ms": "86400000"})
    waiting(processed(one, fed[0]), "all of it")
    before = stream.counts()
    assert set(before) == set(KEYS) - gone
    assert one.terminate() == 0

    shutil.rmtree(one.paths.state)
    one.start().wait_running()
    assert one.client.count("counts", all=True)["keys"] == 7
    assert one.client.count("counts", keys=sorted(gone))["keys"] == 0
    stream.feed([(key, b"0") for key in gone])
    waiting(processed(one, 3), "the cleared keys again")
    assert stream.counts() == before | dict.fromkeys(gone, 1)
    assert one.terminate() == 0


def waiting_long(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for two runs of the broker's log cleaner, because it keeps tombstones for some seconds."""
    done = threading.Event()
    for _ in range(int(seconds)):
        if condition():
            return
        done.wait(1)
    raise AssertionError(f"not compacted in {seconds:g} s")


@pytest.mark.thorough
def test_a_clear_that_is_killed_halfway_ends_right_when_asked_again(
    stream: Any, worker: Any, waiting: Callable[..., Any]
) -> None:
    many = 60_000
    one = worker().start().wait_running()
    stream.feed_numbers(many, keys=many)
    waiting(processed(one, many), "all keys")
    failures: list[HoldfastError] = []

    def ask() -> None:
        try:
            one.client.clear("counts", all=True)
        except HoldfastError as failure:
            failures.append(failure)

    asking = threading.Thread(target=ask)
    asking.start()

    def under_way() -> bool:
        status = one.client.status()
        return status is not None and status.maintenance is not None and status.maintenance["done"] > 0

    waiting(under_way, "the first of the keys to be cleared")
    one.kill()
    asking.join(60)
    assert failures
    one.start().wait_running()
    left = one.client.count("counts", all=True)["keys"]
    assert 0 < left < many
    assert one.client.clear("counts", all=True)["keys"] == left
    assert one.terminate() == 0
    shutil.rmtree(one.paths.state)
    one.start().wait_running()
    assert one.client.count("counts", all=True)["keys"] == 0
    assert one.terminate() == 0


@pytest.mark.thorough
def test_a_long_list_of_keys_goes_in_several_requests(stream: Any, worker: Any, waiting: Callable[..., Any]) -> None:
    one = worker().start().wait_running()
    stream.feed_numbers(40)
    waiting(processed(one, 40), "40 records")
    absent = [f"{number:04d}" + "x" * 4000 for number in range(600)]
    cleared = one.client.clear("counts", keys=[*absent, *KEYS[:4]], export=True)
    assert (cleared["keys"], len(cleared["files"])) == (4, 3)
    assert set(stream.counts()) == set(KEYS[4:])
    assert one.terminate() == 0


@pytest.mark.thorough
def test_a_store_takes_over_what_another_group_has_built(
    stream: Any,
    worker: Any,
    waiting: Callable[..., Any],
    stream_class: Any,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """A store takes over the state that another consumer group has built for it.

    Worker and other group are stopped at the same input offsets before the takeover.
    """
    one = worker().start().wait_running()
    stream.feed_numbers(100)
    waiting(processed(one, 100), "100 records")
    one.client.pause()
    shadow = stream_class(stream.bootstrap, unique("shadow"), tmp_path / "shadow")
    shadow.create_source()
    shadow.feed_numbers(120, keys=12)
    shadow.application(by_ten).run(count=120)
    other = f"{shadow.group}-counts-changelog"
    upto = dict(shadow.topics.settled_end_offsets(other, 60))
    with pytest.raises(CommandFailed, match="It has a writer"):
        one.client.adopt("counts", other, {0: upto[0] - 2})
    with pytest.raises(CommandWrong, match="does not exist"):
        one.client.adopt("counts", other + "s", upto)
    with pytest.raises(CommandWrong, match=f"ends at offset {upto[0]}; expected"):
        one.client.adopt("counts", other, {0: upto[0] + 1})
    with pytest.raises(CommandWrong, match="store counts itself"):
        one.client.adopt("counts", f"{stream.group}-counts-changelog", upto)

    told = one.client.adopt("counts", other, upto, positions=ends(stream))
    assert (told["set"], told["deleted"], told["same"]) == (12, 0, 0)
    assert sum(inputs[shadow.source] for inputs in told["inputs"].values()) == 120
    assert one.client.adopt("counts", other, upto)["same"] == 12
    one.client.resume()
    stream.feed_numbers(12, keys=12)
    waiting(processed(one, 112), "what came after")
    assert stream.counts() == {b"k%d" % number: 101 for number in range(12)}
    one.kill()
    shutil.rmtree(one.paths.state)
    one.start().wait_running()
    assert one.client.count("counts", all=True)["keys"] == 12
    assert not list(one.paths.state.rglob(".scratch/*"))
    assert one.terminate() == 0


@pytest.mark.thorough
def test_a_changelog_that_was_lost_is_made_anew_from_the_disk(
    stream: Any, worker: Any, waiting: Callable[..., Any]
) -> None:
    many, changelog = 30_000, f"{stream.group}-counts-changelog"
    one = worker().start().wait_running()
    stream.feed_numbers(many, keys=many)
    waiting(processed(one, many), "all keys")
    assert one.terminate() == 0
    spec = TopicSpec(changelog, stream.partitions, 1, config=dict(CHANGELOG_CONFIG))
    admin = AdminClient({"bootstrap.servers": stream.bootstrap})
    admin.delete_topics([changelog])[changelog].result(60)
    waiting(lambda: changelog not in stream.topics.describe([changelog]), "the changelog to be gone")
    waiting(lambda: stream.topics.create(spec), "a new one")

    one.start()
    assert one.wait() == 64
    assert "--store counts --from local" in one.tail()
    one.flags = ("--paused", "--reseed", "counts")
    one.start()
    waiting(lambda: any(stream.topics.end_offsets(changelog, committed=False).values()), "the first records")
    one.kill()
    if len(stream.changelog_state()) < many:
        one.flags = ()
        one.start()
        assert one.wait() == 64
    one.flags = ("--paused", "--reseed", "counts")
    one.start().wait_running()
    assert stream.counts() == {b"k%d" % number: 1 for number in range(many)}
    assert one.client.status().records["processed"] == 0
    assert one.terminate() == 0

    shutil.rmtree(one.paths.state)
    one.flags = ("--restore-from", "changelog")
    one.start().wait_running()
    stream.feed_numbers(10)
    waiting(processed(one, 10), "what came after")
    assert sum(stream.counts().values()) == many + 10
    assert one.terminate() == 0


@pytest.fixture(scope="module")
def asked(broker: str, unique: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One worker, shared by all tests that send refused requests. None of these requests changes its state."""
    folder = tmp_path_factory.mktemp("asked")
    stream = Stream(broker, unique("asked"), folder / "state")
    stream.create_source()
    stream.provision()
    one = Worker(stream, folder / "home").start().wait_running()
    try:
        yield one
        assert one.terminate() == 0
    finally:
        one.kill()


def by_ten(value: Any, state: Any) -> int:
    total = state.get("n", 0) + 10
    state.set("n", total)
    return int(total)


@pytest.mark.parametrize(
    ("page", "body", "code", "says"),
    [
        ("/state/clear", b'{"store": "counts"}', 400, "expected exactly 1"),
        ("/state/clear", b'{"store": "counts", "all": true, "partitions": [7]}', 409, "does not own"),
        ("/state/export", b'{"store": [], "all": true}', 400, "No task has all"),
        ("/inputs/position", b'{"positions": {"nowhere": {"0": 1}}}', 409, "is not paused"),
        ("/state/clear", b'{"store": "counts", "keys": ["' + b"x" * (1 << 20) + b'"]}', 413, "at most"),
        *variants(
            [
                ("/state/clear", b"", 400, "can't be decoded"),
                ("/state/clear", b"[]", 400, "can't be decoded"),
                ("/state/clear", b'{"store": "counts", "all": true, "sure": true}', 400, "unknown field"),
                ("/state/clear", b'{"store": "counts", "all": true, "prefix": "k"}', 400, "expected exactly 1"),
                ("/state/clear", b'{"store": "count", "all": true}', 400, "no store"),
                ("/state/clear", b'{"store": "counts", "keys": [1]}', 400, "Expected"),
                ("/state/clear", b'{"store": "counts", "keys": [{"base64": "?"}]}', 400, "base64"),
            ],
            tested=0,
        ),
    ],
)
def test_what_is_wrong_is_refused_with_the_way_out(asked: Any, page: str, body: bytes, code: int, says: str) -> None:
    answer = post(asked, page, body)
    assert answer.status_code == code, answer.text
    assert says in answer.json()["error"]
    assert code == 413 or answer.json()["action"]
    assert post(asked, page, body[: 1 << 19], token="wrong").status_code == 401
    assert asked.client.status().maintenance is None


@pytest.mark.thorough
def test_positions_that_are_not_there_are_refused(stream: Any, worker: Any) -> None:
    one = worker()
    one.flags = ("--paused",)
    one.start().wait_running()
    for positions, says in (
        ({"nowhere": {0: 0}}, "does not read"),
        ({stream.source: {0: 5}}, "can't be read from offset 5"),
        ({stream.source: {0: -1}}, "can't be read from offset -1"),
    ):
        with pytest.raises(CommandWrong, match=says):
            one.client.position(positions)
    with pytest.raises(CommandRefused, match="that the command selects reads"):
        one.client.position({stream.source: {9: 0}})
    assert one.terminate() == 0
