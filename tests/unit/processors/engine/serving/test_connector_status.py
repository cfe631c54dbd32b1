"""A worker's status and metrics have its sources and sinks: counts, positions, last successes and failures."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import Application, InMemoryCluster
from holdfast.infra.system.ports import free_port
from holdfast.processors.engine.connectors import SinkFigures, SourceFigures
from holdfast.processors.engine.runtime.idle import SourceFailed
from holdfast.processors.engine.serving.metrics import WorkerMetrics
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.engine.sinks.errors import SinkFailed
from holdfast.processors.lifecycle.health.connectors import judge_sink
from holdfast.sinks import BatchingSink, JsonLinesSink, SinkBackpressureError, SinkBatch, SinkRowsRefused
from holdfast.sources import FileSource, HttpSource, SqlSource, StatefulSource
from tests.unit.processors.engine.serving.test_lag_of_inputs import seen_of
from tests.unit.processors.engine.serving.test_metrics import read
from tests.unit.processors.engine.serving.test_metrics import status as worker_status

#: The status of a worker that knows neither sources nor sinks.
DOCUMENT = {
    **{"processor": "g", "slot": "0", "pid": 1, "phase": "running", "guarantee": "", "code_version": ""},
    **{"started_at": 0.0, "heartbeat_at": 0.0, "error": None, "records": {}, "commits": {}, "tasks": []},
}


class Rows(BatchingSink):
    """A system that is away for the first ``busy`` writes, and never takes the value ``refused``."""

    def __init__(self, busy: int = 0, refused: int | None = None, retry_after: float = 0.01) -> None:
        super().__init__()
        self.rows: list[Any] = []
        self.busy, self.refused, self.retry_after = busy, refused, retry_after

    def write(self, batch: SinkBatch) -> None:
        if self.busy:
            self.busy -= 1
            raise SinkBackpressureError(self.retry_after) from ConnectionError("no route to password=hunter22")
        if bad := [item for item in batch if item.value["n"] == self.refused]:
            raise SinkRowsRefused(batch, [(item, "n is too large") for item in bad])
        self.rows += [item.value["n"] for item in batch]


def application(source: StatefulSource, *sinks: Any) -> Application:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead"
    )
    sdf = app.dataframe(source=source)
    for sink in sinks:
        sdf.sink(sink)
    return app


def lines(folder: Path, *numbers: int) -> FileSource:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({"n": number}) + "\n" for number in numbers))
    return FileSource("rows", str(file), batch=2, watch=1.0)


def stored(count: int) -> Any:
    return lambda status: any(each.stored >= count for each in status.sinks.values())


def failures_of(status: ProcessorStatus, name: str) -> int:
    source, sink = status.sources.get(name), status.sinks.get(name)
    return (0 if source is None else source.failures) + (0 if sink is None else sink.failures)


def test_a_status_has_the_figures_of_sources_and_sinks(tmp_path: Path) -> None:
    source, sink = lines(tmp_path, 1, 2, 3), Rows()
    status = seen_of(InMemoryCluster(), application(source, sink), stored(3))
    seen, of_sink = status.sources["rows"], status.sinks["Rows"]
    assert (seen.task, seen.produced, seen.runs, seen.ended) == ("source__rows-0", 3, True, False)
    assert (seen.position, dict(seen.remaining)) == ("rows.jsonl, byte 27", {"files": 0, "bytes": 0})
    assert (seen.failures, seen.fails, seen.within_s) == (0, False, 91.0)
    assert seen.reported_at is not None
    assert (of_sink.stored, of_sink.failures, of_sink.fails, of_sink.unpublished) == (3, 0, False, None)
    assert sorted(sink.rows) == [1, 2, 3]


def test_what_is_left_of_files_is_told_after_each_batch(tmp_path: Path) -> None:
    told: list[SourceFigures] = []
    source = lines(tmp_path, *range(5))
    (tmp_path / "more.jsonl").write_text('{"n": 10}\n{"n": 11}\n')
    reports = FileSource.report

    class Told(FileSource):
        def report(self, *given: Any, **named: Any) -> None:
            reports(self, *given, **named)
            assert self._handover is not None
            told.append(self._handover.figures)

    source = Told("rows", f"{tmp_path}/*.jsonl", batch=2)
    InMemoryCluster().run(application(source))
    assert [(each.remaining["files"], each.remaining["bytes"]) for each in told] == [
        (2, 65),
        (2, 45),
        (1, 45),
        (1, 27),
        (1, 9),
        (0, 0),
    ]


def test_a_failing_source_has_its_last_error_until_it_reaches_its_system(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/missing/shop.db"
    source = SqlSource("orders", url, table="orders", cursor="id", patience=3_600)
    status = seen_of(InMemoryCluster(), application(source), lambda status: failures_of(status, "orders") > 1)
    seen = status.sources["orders"]
    assert seen.fails
    assert "does not answer" in seen.failure
    assert (seen.reported_at, seen.produced) == (None, 0)


def test_a_table_that_is_read_to_its_end_has_no_row_left(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        database.executemany("INSERT INTO orders VALUES (?)", [(1,), (2,), (3,)])
    source = SqlSource("orders", f"sqlite:///{tmp_path}/shop.db", table="orders", cursor="id", batch=2, poll=1.0)
    told: list[SourceFigures] = []

    def look(status: ProcessorStatus) -> bool:
        told.extend(each for each in status.sources.values() if each.reported_at is not None)
        return bool(told) and bool(told[-1].remaining)

    seen = seen_of(InMemoryCluster(), application(source), look).sources["orders"]
    assert (seen.position, dict(seen.remaining), seen.within_s) == ("id = 3", {"rows": 0}, 121.0)
    assert all(not each.remaining for each in told if each.position == "id = 2"), "unknown before the last page"


@pytest.mark.slow
def test_a_parquet_file_is_left_until_it_is_read_to_its_end(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "rows.parquet")
    source = FileSource("rows", f"{tmp_path}/*.parquet", batch=2, watch=1.0)
    seen = seen_of(
        InMemoryCluster(),
        application(source),
        lambda status: any(each.produced > 2 for each in status.sources.values()),
    ).sources["rows"]
    assert (seen.position, dict(seen.remaining)) == ("rows.parquet, row 3", {"files": 0, "bytes": 0})


def test_an_endpoint_reports_that_it_listens() -> None:
    source = HttpSource("events", free_port())
    seen = seen_of(
        InMemoryCluster(), application(source), lambda status: any(each.reported_at for each in status.sources.values())
    ).sources["events"]
    assert (seen.runs, seen.position) == (True, "0 idempotency keys are remembered")


def test_a_source_that_has_ended_says_so(tmp_path: Path) -> None:
    source = FileSource("rows", str(lines(tmp_path, 1)._files.shown))
    seen = seen_of(
        InMemoryCluster(), application(source), lambda status: any(each.ended for each in status.sources.values())
    ).sources["rows"]
    assert (seen.produced, seen.runs, seen.within_s) == (1, False, None)


def test_a_source_that_raised_does_not_run_and_its_error_has_no_secret() -> None:
    handovers: list[Any] = []

    class Broken(StatefulSource):
        def run(self) -> None:
            handovers.append(self._handover)
            self.report("before", {"rows": 1})
            raise ValueError("token=abcdef123 is wrong")

    with pytest.raises(SourceFailed, match="broken"):
        InMemoryCluster().run(application(Broken("broken")))
    last: SourceFigures = handovers[0].figures
    assert (last.runs, last.position) == (False, "before")
    assert last.failure == "ValueError: token=*** is wrong"


def test_failures_and_refusals_of_a_sink_are_counted(tmp_path: Path) -> None:
    sink = Rows(busy=2, refused=2)
    status = seen_of(InMemoryCluster(), application(lines(tmp_path, 1, 2, 3), sink), stored(2))
    seen = status.sinks["Rows"]
    assert (seen.failures, seen.refused, seen.stored, seen.fails) == (2, 1, 2, False)
    assert seen.failure == "n is too large"
    assert seen.failed_at is not None


def test_a_sink_that_is_away_fails_and_its_error_has_no_secret(tmp_path: Path) -> None:
    away_app = application(lines(tmp_path, 1), Rows(busy=10**6, retry_after=6.0))
    with capture_logs() as logged:
        away = seen_of(InMemoryCluster(), away_app, lambda status: failures_of(status, "Rows") > 2).sinks["Rows"]
    told = [each for each in logged if "its inputs are paused" in each["event"]]
    assert told
    assert {each["error"] for each in told} == {away.failure}, "the log says why, too"
    assert away.fails
    assert away.stored_at is None
    assert away.failure == "ConnectionError: no route to password=***"


def test_parts_that_wait_for_their_publication_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise SinkBackpressureError(0.01)

    sink = JsonLinesSink(f"{tmp_path}/out", name="out")
    source = lines(tmp_path, 1)

    def waits(status: ProcessorStatus) -> bool:
        return any(each.unpublished for each in status.sinks.values())

    monkeypatch.setattr(sink, "publish", away)
    monkeypatch.setattr(sink, "recover", lambda *_: None)
    status = seen_of(InMemoryCluster(), application(source, sink), waits)
    assert status.sinks["out"].unpublished == 1
    assert status.sinks["out"].failures >= 0


def test_the_error_that_stops_a_worker_names_the_sink(tmp_path: Path) -> None:
    def broken(*_: Any) -> None:
        raise OSError("no route")

    sink = JsonLinesSink(f"{tmp_path}/out", name="out")
    app = application(lines(tmp_path, 1), sink, JsonLinesSink(f"{tmp_path}/other", name="other"))
    sink.setup = broken  # type: ignore[method-assign]
    with pytest.raises(SinkFailed) as failed:
        InMemoryCluster().run(app)
    specs = {each.name: each for each in app.topology().connectors if each.role == "sink"}
    document = {**DOCUMENT, "phase": "failed", "error": failed.value.as_dict()}
    said = {name: judge_sink("g", spec, [ProcessorStatus.decode(document)], 0.0) for name, spec in specs.items()}
    assert "has stopped worker 0: `start` of sink JsonLinesSink raised OSError" in said["out"].sentence
    assert not said["other"].known


def test_two_sinks_of_one_name_are_told_apart(tmp_path: Path) -> None:
    status = seen_of(InMemoryCluster(), application(lines(tmp_path, 1), Rows(), Rows()), stored(1))
    assert status.sinks.keys() == {"Rows", "Rows-2"}


def test_the_metrics_have_the_figures() -> None:
    source = {
        **{"produced": 7, "failures": 1, "reported_at": 1_700_000_000.5, "remaining": {"files": 2}},
    }
    sink = {"stored": 5, "failures": 2, "refused": 1, "stored_at": None, "unpublished": 3}
    found = read(WorkerMetrics().page(worker_status(sources={"rows": source}, sinks={"table": sink}), 0.0))
    assert found["holdfast_source_messages_total source=rows"] == 7
    assert found["holdfast_source_remaining source=rows unit=files"] == 2
    assert found["holdfast_sink_results_total sink=table"] == 5
    assert found["holdfast_sink_unpublished_parts sink=table"] == 3
    assert "holdfast_sink_success_time_seconds sink=table" not in found


def test_a_status_of_an_older_worker_has_neither() -> None:
    status = ProcessorStatus.decode(DOCUMENT)
    assert (status.sources, status.sinks) == ({}, {})
    assert SinkFigures().unpublished is None
