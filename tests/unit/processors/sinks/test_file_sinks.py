"""Files of sinks: whole and once, whatever is killed; rows that fit no file; a folder that can't be written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.storage.output_files import OutputFiles
from holdfast.processors.engine.sinks.errors import SinkFailed, SinkInvalid
from holdfast.processors.engine.sinks.staging import SinkTask, StagedPart
from holdfast.processors.sinks.patience import SinkSystemAway
from holdfast.sinks import JsonLinesSink, ParquetSink, Patience, SinkBackpressureError
from holdfast.testing import PausingSinkContract

TASK = SinkTask("g", "files", 0)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows that a reader of the folder sees: it skips names that begin with `_` or a dot."""
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = []
    for file in sorted(each for each in folder.glob("*") if each.is_file() and each.name[0] not in "._"):
        if file.suffix == ".parquet":
            found += pq.read_table(file).to_pylist()
        else:
            found += [json.loads(line) for line in file.read_text().splitlines()]
    return found


@pytest.mark.slow
class TestParquetSink(PausingSinkContract):
    keeps = "each"

    def make_sink(self) -> ParquetSink:
        return ParquetSink(str(self.folder / "rows"))

    def stored(self) -> Counter[tuple[str, int]]:
        return Counter((row["_key"], row["n"]) for row in rows_of(self.folder / "rows"))

    @contextmanager
    def away(self) -> Iterator[None]:
        folder, aside = self.folder / "rows", self.folder / "aside"
        folder.mkdir(exist_ok=True)
        folder.rename(aside)
        folder.write_text("a disk that is not mounted")
        yield
        folder.unlink()
        aside.rename(folder)


@pytest.mark.slow
class TestJsonLinesSink(TestParquetSink):
    def make_sink(self) -> JsonLinesSink:  # type: ignore[override]
        return JsonLinesSink(str(self.folder / "rows"))


def run(sink: Any, *values: Any, cluster: InMemoryCluster | None = None, **given: Any) -> InMemoryCluster:
    if cluster is None:
        cluster = InMemoryCluster()
        cluster.create_topic("in", 1)
    for number, value in enumerate(values):
        cluster.produce("in", json.dumps(value).encode(), b"k%d" % number)
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **given)
    app.dataframe(app.topic("in", key_deserializer="str")).sink(sink)
    cluster.run(app)
    return cluster


def test_rows_have_the_fields_and_the_place_of_their_message(tmp_path: Path) -> None:
    run(ParquetSink(str(tmp_path)), {"n": 1}, {"n": 2, "parts": [1.5]}, {"more": "x"})
    rows = rows_of(tmp_path)
    assert [(row["n"], row["parts"], row["more"]) for row in rows] == [
        (1, None, None),
        (2, [1.5], None),
        (None, None, "x"),
    ]
    assert [(row["_key"], row["_topic"], row["_partition"], row["_offset"]) for row in rows] == [
        (f"k{number}", "in", 0, number) for number in range(3)
    ]


def test_a_function_makes_the_rows_and_leaves_results_out(tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path), metadata=False, row=lambda item: None if item.value < 0 else {"n": item.value})
    run(sink, 1, -1, 2)
    assert rows_of(tmp_path) == [{"n": 1}, {"n": 2}]
    run(ParquetSink(str(tmp_path / "none"), row=lambda item: None), 1, 2)
    assert rows_of(tmp_path / "none") == []


def test_a_row_of_another_type_becomes_a_dead_letter(tmp_path: Path) -> None:
    cluster = run(ParquetSink(str(tmp_path)), {"n": 1}, {"n": "two"}, {"n": 3}, dead_letter_topic="dead")
    assert [row["n"] for row in rows_of(tmp_path)] == [1, 3]
    assert [json.loads(record.value or b"") for _, record in cluster.read("dead")] == [{"n": "two"}]


def test_a_row_that_is_not_in_the_schema_becomes_a_dead_letter(tmp_path: Path) -> None:
    import pyarrow as pa

    sink = ParquetSink(str(tmp_path), schema=pa.schema([("n", pa.int8())]), metadata=False)
    values = [{"n": 1}, {"n": 300}, {"m": 1}, {}, {"n": 5}]
    cluster = run(sink, *values, dead_letter_topic="dead")
    assert rows_of(tmp_path) == [{"n": 1}, {"n": None}, {"n": 5}]
    assert [json.loads(record.value or b"") for _, record in cluster.read("dead")] == [{"n": 300}, {"m": 1}]


def test_what_was_staged_without_a_commit_is_removed_at_the_next_start(tmp_path: Path) -> None:
    cluster = run(ParquetSink(str(tmp_path)), {"n": 1})
    left = tmp_path / "_staged" / "g-parquet-0" / "left.parquet"
    left.write_bytes(b"half a file")
    foreign = tmp_path / "_staged" / "other-parquet-0"
    foreign.mkdir()
    run(ParquetSink(str(tmp_path)), {"n": 2}, cluster=cluster)
    assert not left.exists()
    assert foreign.exists()
    assert [row["n"] for row in rows_of(tmp_path)] == [1, 2]


def staged(sink: JsonLinesSink, *numbers: int) -> StagedPart:
    from holdfast.infra.kafka.records import Partition
    from holdfast.sinks import SinkBatch

    sink.assigned("g", [Partition("in", 0)])
    batch = SinkBatch("in", 0)
    for number in numbers:
        batch.append({"n": number}, b"k", 0, None, number)
    return StagedPart(numbers[0], (sink.stage(batch),))


def test_parts_are_published_once_whoever_is_asked_and_in_whatever_state(tmp_path: Path) -> None:
    """A frozen worker that wakes up publishes what its successor has published, and what readers have taken away."""
    sink = JsonLinesSink(str(tmp_path), name="files")
    first, second = staged(sink, 1, 2), staged(sink, 3)
    sink.publish(TASK, [first])
    sink.publish(TASK, [first])
    successor = JsonLinesSink(str(tmp_path), name="files")
    successor.publish(TASK, [first, second])
    for file in tmp_path.glob("*.jsonl"):
        file.unlink()  # a reader that takes files away
    sink.publish(TASK, [first])
    successor.recover(TASK, [first, second])
    assert rows_of(tmp_path) == []


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_kill_between_two_files_of_a_commit_and_the_marker(tmp_path: Path, moved: int) -> None:
    sink = JsonLinesSink(str(tmp_path), name="files")
    part = StagedPart(7, (*staged(sink, 1).content, *staged(sink, 2).content))
    for name in part.content[:moved]:
        (tmp_path / "_staged" / TASK.label / name).rename(tmp_path / name)
    JsonLinesSink(str(tmp_path), name="files").recover(TASK, [part])
    assert [row["n"] for row in rows_of(tmp_path)] == [1, 2]


def test_a_staged_file_that_somebody_deleted_is_an_error_and_not_a_gap(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path), name="lines")
    real = sink.publish

    def gone(task: SinkTask, parts: Any) -> None:
        for file in (tmp_path / "_staged" / task.label).iterdir():
            file.rename(tmp_path.parent / file.name)
        real(task, parts)

    sink.publish = gone  # type: ignore[method-assign]
    cluster = InMemoryCluster()
    cluster.create_topic("in", 1)
    with pytest.raises(
        SinkFailed, match="is in .* neither under this name nor as .*the next start publishes it"
    ) as failed:
        run(sink, {"n": 1}, cluster=cluster)
    assert "Put the file back" in failed.value.action
    (name,) = tmp_path.parent.glob("*.jsonl")
    name.rename(tmp_path / "_staged" / "g-lines-0" / name.name)
    run(JsonLinesSink(str(tmp_path), name="lines"), cluster=cluster)
    assert [row["n"] for row in rows_of(tmp_path)] == [1]


def test_a_store_that_is_away_at_publishing_pauses_and_publishes_later(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path), name="lines", retry=Patience(20, 60, 600))
    real, failures = sink._files.move, [OSError("away"), OSError("away")]

    def move(name: str, to: str) -> None:
        if failures:
            raise failures.pop()
        real(name, to)

    sink._files.move = move  # type: ignore[method-assign]
    run(sink, {"n": 1}, {"n": 2})
    assert failures == []
    assert [row["n"] for row in rows_of(tmp_path)] == [1, 2]


def test_a_full_disk_pauses_and_a_disk_without_rights_stops(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path), retry=Patience(1, 2, 10))
    now = [0.0]
    sink._attempts._steady_s = lambda: now[0]

    def failing(error: OSError) -> Any:
        def write(name: str, content: bytes) -> None:
            raise error

        return write

    sink._files.write = failing(OSError(28, "No space left on device"))  # type: ignore[method-assign]
    with pytest.raises(SinkBackpressureError):
        staged(sink, 1)
    now[0] = 11.0
    with pytest.raises(SinkSystemAway, match="has taken nothing for 11 s: OSError: .*No space left"):
        staged(sink, 1)
    sink._files.write = failing(PermissionError(13, "Permission denied"))  # type: ignore[method-assign]
    with pytest.raises(PermissionError):
        staged(sink, 1)


def test_declarations_are_refused(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path))
    app = Application("in-memory", consumer_group="g", loglevel=None)
    sdf = app.dataframe(app.topic("in"))
    sdf.sink(sink)
    sdf.filter(bool).sink(JsonLinesSink(str(tmp_path / "other")))
    with pytest.raises(SinkInvalid, match="Two steps have a sink of the name 'files'") as refused:
        app.topology()
    assert "name='another'" in refused.value.action
    app = Application("in-memory", consumer_group="g", loglevel=None, use_changelog_topics=False)
    app.dataframe(app.topic("in")).sink(sink)
    with pytest.raises(SinkInvalid, match="use_changelog_topics is off"):
        app.topology()


def test_the_list_is_in_the_tasks_state(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path), name="lines")
    cluster = run(sink, {"n": 1})
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    app.dataframe(app.topic("in", key_deserializer="str")).sink(sink)
    ((_, record),) = cluster.state(app, "sink-lines").items()
    assert [len(content) for _, content in record["staged"]] == [1]


def test_the_files_of_other_stores_are_moved_by_copies() -> None:
    files = OutputFiles("memory://sink-test")
    files.write("_staged/a", b"1")
    files.move("_staged/a", "a")
    files.move("_staged/a", "a")
    assert (files.read("a"), files.read("_staged/a"), files.names("_staged")) == (b"1", None, [])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["cleared", "clock"])
def test_results_after_a_clear_are_published_although_the_clock_was_ahead_before(tmp_path: Path, what: str) -> None:
    cluster = run(JsonLinesSink(str(tmp_path)), {"n": 1})
    cluster.clock.skew_s = 21_600.0 if what == "clock" else 0.0
    run(JsonLinesSink(str(tmp_path)), {"n": 2}, cluster=cluster)
    cluster.clock.skew_s = 0.0
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    app.dataframe(app.topic("in", key_deserializer="str")).sink(JsonLinesSink(str(tmp_path)))
    cluster.clear_state(app)
    run(JsonLinesSink(str(tmp_path)), {"n": 3}, cluster=cluster)
    assert sorted(row["n"] for row in rows_of(tmp_path)) == [1, 2, 3]
