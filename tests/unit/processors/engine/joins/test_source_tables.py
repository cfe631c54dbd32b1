"""Tables with ``changelog="source"``. After any kill, the rows equal those of the topic up to the committed offset."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import copy
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from structlog.testing import capture_logs

from holdfast import Application, InMemoryCluster, Partition
from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.processors.engine.changelog.format import decode_value, encode_value, full_keys, split_key
from holdfast.processors.engine.commands.table import COMMANDS
from holdfast.processors.engine.runtime import loop
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.runtime.owner_commands.commands import Adopt, Clear, CommandWrong, Export, Position
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
from holdfast.processors.engine.runtime.ownership import changelog_replay as restore
from holdfast.processors.engine.runtime.reading import reading_order
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.state.exports import entry_of
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.simulation.disk import SimulatedDisk
from tests.simulation.planted_sources import put_aside, timeless, too_far, undead
from tests.window_lives import Killed, carry_out, live, world

SEEDS = variants(range(600), tested=8)
VALUES: list[Any] = [0, "", False, {}, [], 1, "x", {"a": None}, None]
#: Bytes that no deserializer accepts. A message with these bytes becomes a dead letter.
POISON = b"{"


def application(
    state_dir: Path | None, *, left_first: bool = True, changelog: Literal["own", "source"] = "source", **changes: Any
) -> Application:
    options = {"auto_offset_reset": "earliest", "loglevel": None, "commit_every": 7, "state_dir": state_dir, **changes}
    app = Application("in-memory", consumer_group="g", **options)
    orders = app.dataframe(app.topic("l")) if left_first else None
    rows = app.table(app.topic("r"), "rows", changelog=changelog)
    orders = app.dataframe(app.topic("l")) if orders is None else orders
    orders.join_table(rows, "left", lambda left, right: [left, right]).to_topic(app.topic("out"))
    return app


def held(cluster: InMemoryCluster, app: Application, folder: Path) -> dict[bytes, bytes]:
    """Return the rows that a worker with an empty disk restores, as they are in its database."""
    alone = copy(app)
    alone.state_dir = folder
    found = carry_out(cluster, alone, Export(store="rows", all=True))["lines"]
    entries = [entry_of(line, number) for number, line in enumerate(found, 1)]
    return {entry.key: entry.stored for entry in entries}


def check(seed: int, folder: Path) -> None:
    """Check outputs and restored rows after random kills, lost disks, old disks and unreadable messages."""
    random, (cluster, _) = Random(seed), world()
    for topic in ("l", "r"):
        cluster.create_topic(topic, config={"cleanup.policy": "compact"} if topic == "r" else {})
    app = application(
        folder / "unused", left_first=random.random() < 0.5, on_processing_error=lambda error, *_: "read" in str(error)
    )
    disk, at, rows, expected = SimulatedDisk(), 0, dict[bytes, tuple[Any, int]](), list[list[Any]]()
    # small limits, so that inputs arrive in pieces and replays are interrupted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "RECORDS_PER_POLL", random.choice([1, 3, 2_000]))
        patch.setattr(reading_order, "BUFFERED_MAX", random.choice([4, 10_000]))
        patch.setattr(restore, "RECORDS_PER_STEP", random.choice([2, 10_000]))
        for _ in range(random.randint(1, 3)):
            for _ in range(random.randint(0, 40)):
                at += 10
                key, value = random.choice([b"a", b"b", b"", b"a/b"]), random.choice(VALUES)
                raw = None if value is None else json.dumps(value).encode()
                if random.random() < 0.4:
                    cluster.produce("l", json.dumps(at).encode(), key, timestamp_ms=at)
                    expected.append([at, rows[key][0] if key in rows else None])
                elif random.random() < 0.2:
                    cluster.produce("r", POISON, key, timestamp_ms=at)
                else:
                    cluster.produce("r", raw, key, timestamp_ms=at)
                    rows.pop(key, None)
                    if value is not None:
                        rows[key] = (value, at)
            for _ in range(3):
                live(cluster, app, disk if random.random() < 0.5 else SimulatedDisk(), random)
            live(cluster, app, disk if random.random() < 0.5 else SimulatedDisk(), None)
    assert repr([json.loads(each.value or b"") for _, each in cluster.read("out")]) == repr(expected)
    for key in (b"a", b"new"):  # rows after the committed offset must not be restored
        cluster.produce("r", b'"later"', key, timestamp_ms=at + 10)
    wanted = {key: encode_value(value, time_ms) for key, (value, time_ms) in rows.items()}
    assert held(cluster, app, folder / "lost") == dict(
        zip(full_keys(list(wanted), b"row"), wanted.values(), strict=True)
    )
    assert {key for key, _ in cluster.state(app, "rows")} == set(rows)
    assert not [name for name in cluster._broker.topics if "rows" in name]


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_and_joins_are_right_over_kills_and_lost_disks(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.parametrize("bug", [too_far, put_aside, undead, timeless])
def test_the_seeds_find_planted_bugs(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    assert is_found(bug, check, tmp_path)


# -- one thing at a time ----------------------------------------------------------------------------------------------


def filled(*records: tuple[bytes, bytes | None], config: dict[str, str] | None = None) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("l")
    cluster.create_topic("r", config={"cleanup.policy": "compact", **(config or {})})
    for key, value in records:
        cluster.produce("r", value, key)
    return cluster


def rows_held(cluster: InMemoryCluster, state_dir: Path) -> dict[bytes, Any]:
    """The rows in the database of a worker with this state folder, by message key."""
    told = carry_out(cluster, application(state_dir), Export(store="rows", all=True))["lines"]
    return {split_key(each.key)[0]: decode_value(each.stored) for each in (entry_of(n, 1) for n in told)}


def test_no_topic_is_written_for_the_table(tmp_path: Path) -> None:
    cluster = filled((b"a", b"1"), (b"b", b"2"), (b"a", None))
    cluster.run(application(tmp_path))
    assert set(cluster._broker.topics) == {"l", "r", "out"}
    assert len(cluster.read("r")) == 3
    assert rows_held(cluster, tmp_path / "other") == {b"b": 2} == rows_held(cluster, tmp_path)


def test_offsets_that_were_set_back_give_the_rows_of_before(tmp_path: Path) -> None:
    cluster = filled((b"a", b"1"), (b"a", b"2"), (b"b", b"3"))
    cluster.run(application(tmp_path))
    cluster.reset_offsets("g", {Partition("r", 0): 1})
    assert rows_held(cluster, tmp_path) == {b"a": 1}
    cluster.run(application(tmp_path))
    assert rows_held(cluster, tmp_path) == {b"a": 2, b"b": 3}


def test_a_table_gives_its_changelog_up_and_takes_it_again(tmp_path: Path) -> None:
    cluster = filled((b"a", b"1"), (b"b", b"2"))
    own = application(tmp_path, changelog="own")
    cluster.run(own)
    cluster.produce("r", None, b"a")
    cluster.run(application(tmp_path))
    assert rows_held(cluster, tmp_path) == {b"b": 2}
    with pytest.raises(StateIncoherent, match="belongs to topic r, but the changelog .* is g-rows-changelog") as known:
        cluster.run(own)
    assert "--store rows --from local" in known.value.action
    with pytest.raises(StateIncoherent, match="committed r up to 3, but store rows holds it only up to 2"):
        cluster.run(application(tmp_path / "lost", changelog="own"))
    own._start = Start(reseed=frozenset({"rows"}))
    cluster.run(own)
    assert cluster.state(own, "rows") == {(b"b", "row"): 2}


def test_a_lost_disk_takes_no_changelog_that_was_never_written(tmp_path: Path) -> None:
    cluster = filled((b"a", b"1"), (b"b", b"2"))
    cluster.run(application(tmp_path))
    with pytest.raises(StateIncoherent, match="committed r up to 2, but store rows holds nothing of it") as refused:
        cluster.run(application(tmp_path / "lost", changelog="own"))
    assert "--store rows --from topic" in refused.value.action


def test_a_topic_that_was_created_again_is_refused(tmp_path: Path) -> None:
    cluster = filled((b"a", b"1"))
    cluster.run(application(tmp_path))
    cluster.delete_topic("r")
    cluster.create_topic("r", config={"cleanup.policy": "compact"})
    cluster.produce("r", b"9", b"a")
    with pytest.raises(StateIncoherent, match="source r was recreated"):
        cluster.run(application(tmp_path))


def test_a_topic_without_its_first_records_restores_no_lost_disk(tmp_path: Path) -> None:
    cluster = filled((b"a", b"1"), (b"b", b"2"))
    cluster.run(application(tmp_path))
    with capture_logs() as logs:
        cluster.run(application(tmp_path))
    assert not [each for each in logs if "begins at offset" in each["event"]]
    cluster.truncate(Partition("r", 0), start=1)
    with capture_logs() as logs:
        cluster.run(application(tmp_path))
    (warned,) = [each["event"] for each in logs if "begins at offset" in each["event"]]
    assert "Topic r, from which table rows is restored, begins at offset 1 in partition 0, expected 0" in warned
    assert rows_held(cluster, tmp_path) == {b"a": 1, b"b": 2}
    with pytest.raises(StateIncoherent, match="rows of the table are gone") as refused:
        cluster.run(application(tmp_path / "lost"))
    assert "--all --rewind earliest" in refused.value.action


def test_a_topic_that_loses_rows_is_refused(tmp_path: Path) -> None:
    cluster = filled(config={"cleanup.policy": "delete"})
    with pytest.raises(TopicUnusable, match="Kafka would delete rows of it") as refused:
        cluster.run(application(tmp_path))
    assert "cleanup.policy=compact" in refused.value.action


def test_a_delete_that_is_gone_from_the_topic_brings_no_row_back(tmp_path: Path) -> None:
    """Old local state must not keep a row that was deleted in the topic.

    The local state was committed recently. But the deletes that it has not read yet are older than
    `delete.retention.ms`. Compaction may have removed them, so the table is read from the start of the topic.
    """
    cluster = filled(config={"delete.retention.ms": "1000000"})
    now = int(cluster.clock.time() * 1000)
    for key, value, ago_s in ((b"a", b"1", 2_000), (b"a", None, 1_900), (b"b", b"2", 1_800)):
        cluster.produce("r", value, key, timestamp_ms=now - ago_s * 1000)
    cluster.run(application(tmp_path), count=1)
    old = tmp_path / "copy"
    shutil.copytree(tmp_path, old)
    assert rows_held(cluster, old) == {b"a": 1}
    cluster.run(application(tmp_path))
    cluster.compact(Partition("r", 0), drop_tombstones=True)
    assert rows_held(cluster, old) == {b"b": 2}


def test_a_clean_slate_reads_the_table_again(tmp_path: Path) -> None:
    cluster = filled((b"a", b"1"), (b"b", b"2"))
    app = application(tmp_path)
    cluster.run(app)
    with pytest.raises(CommandWrong, match="a clear would be gone with the next restore") as refused:
        cluster.clear_state(app)
    assert "`clear_state(rewind='earliest')`" in refused.value.action
    cluster.clear_state(app, rewind="earliest")
    assert rows_held(cluster, tmp_path) == {} == rows_held(cluster, tmp_path / "lost")
    cluster.run(app)
    assert rows_held(cluster, tmp_path) == {b"a": 1, b"b": 2}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (Clear(store="rows", keys=("a",)), "a clear would be gone with the next restore"),
        (Clear(store="rows", all=True), "a clear would be gone with the next restore"),
        (Clear(store="rows", all=True, positions={"r": {0: 1}}), "has the rows of another offset"),
        (Position(positions={"r": {0: 0}}), "has the rows of another offset"),
        (Adopt(store="rows", changelog="r", upto={0: 2}), "a change would be gone with the next restore"),
    ],
)
def test_commands_that_would_part_the_table_from_its_topic_are_refused(command: Any, said: str, tmp_path: Path) -> None:
    cluster = filled((b"a", b"1"), (b"b", b"2"))
    cluster.run(application(tmp_path))
    with pytest.raises(CommandWrong, match=said):
        carry_out(cluster, application(tmp_path), command)
    assert rows_held(cluster, tmp_path) == {b"a": 1, b"b": 2}


def test_a_worker_that_goes_on_after_a_rewind_has_no_row_in_memory(tmp_path: Path) -> None:
    cluster = filled((b"a", b"1"))
    cluster.produce("l", b"0", b"a")
    app, seen = application(tmp_path), list[Any]()

    def errand(worker: Owner, ticket: Ticket) -> Work:
        worker.maintenance.waits = True
        while not worker.assignment.tasks or sum(worker.assignment.tasks[0].committed.values()) < 2:
            yield
        worker.maintenance.waits = False
        worker.pause()  # type: ignore[attr-defined]
        yield
        done = yield from COMMANDS.work_of(Clear(store="rows", all=True, positions={"r": {0: 0}}), worker, ticket)
        state = worker.assignment.tasks[0].states["rows"]
        state.point_at(b"a", 0)
        seen.append(state.get("row"))
        worker.stop()
        return done

    app._errand = errand
    cluster.run(app)
    assert seen == [None]


def test_a_kill_in_a_rewind_leaves_no_half_table(tmp_path: Path) -> None:
    cluster = filled((b"a", b"1"), (b"b", b"2"))
    app = application(tmp_path)
    cluster.run(app)

    def killed(store: TaskStore, name: str) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskStore, "empty", killed)
        with pytest.raises(Killed):
            cluster.clear_state(app, rewind="earliest")
    assert rows_held(cluster, tmp_path) == {}
    cluster.run(app)
    assert rows_held(cluster, tmp_path) == {b"a": 1, b"b": 2}
