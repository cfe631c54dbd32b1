"""``FileSource`` on real files: formats, growing and changed files, errors with their actions."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import structlog

from holdfast import Application, InMemoryCluster
from holdfast.infra.storage.errors import StorageUnusable
from holdfast.infra.storage.input_files import InputFile, InputFiles
from holdfast.processors.engine.runtime.idle import SourceFailed
from holdfast.processors.sources import file_rows, file_source
from holdfast.processors.sources.row_fields import SourceOptionInvalid
from holdfast.sources import CsvFormat, FileSource


def build(path: Path | str, **given: Any) -> Application:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_backend="memory"
    )
    app.add_source(FileSource("files", str(path), **given))
    return app


def sent(cluster: InMemoryCluster) -> list[Any]:
    return [json.loads(record.value or b"null") for _, record in cluster.read("source__files")]


def ids(cluster: InMemoryCluster) -> list[int]:
    return [int(row["id"]) for row in sent(cluster)]


def lines(*numbers: int) -> str:
    return "".join(f'{{"id": {number}}}\n' for number in numbers)


def failed(cluster: InMemoryCluster, app: Application, error: str) -> SourceFailed:
    with pytest.raises(SourceFailed) as raised:
        cluster.run(app, quiet_s=100)
    assert raised.value.fields["error"] == error
    return raised.value


@pytest.fixture
def cluster() -> InMemoryCluster:
    return InMemoryCluster()


# -- formats ---------------------------------------------------------------------------------------------------------


def test_csv_has_a_delimiter_an_encoding_and_columns(tmp_path: Path, cluster: InMemoryCluster) -> None:
    (tmp_path / "a.txt").write_bytes("1;'ä;b'\n\n2;c".encode("latin-1"))
    form = CsvFormat(delimiter=";", quote="'", encoding="latin-1", columns=["id", "text"])
    cluster.run(build(tmp_path / "*.txt", format=form, key=lambda row: int(row["id"])))
    assert sent(cluster) == [{"id": "1", "text": "ä;b"}, {"id": "2", "text": "c"}]
    assert [record.key for _, record in cluster.read("source__files")] == [b"1", b"2"]


def test_a_csv_file_of_a_header_has_no_rows(tmp_path: Path, cluster: InMemoryCluster) -> None:
    for name, text in (("a.csv", ""), ("b.csv", "id"), ("c.csv", "id\n")):
        (tmp_path / name).write_text(text)
    cluster.run(build(tmp_path / "*.csv"))
    (tmp_path / "c.csv").write_text("id\n3\n")
    cluster.run(build(tmp_path / "*.csv"))
    assert ids(cluster) == [3]


@pytest.mark.slow
def test_values_of_parquet_are_exact(tmp_path: Path, cluster: InMemoryCluster) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {
        "amount": pyarrow.array([Decimal("1.10"), None], pyarrow.decimal128(38, 2)),
        "big": pyarrow.array([2**62 + 1, None], pyarrow.int64()),
        "day": pyarrow.array([date(2024, 2, 29), None]),
        "at": pyarrow.array([datetime(2024, 1, 1, 1, 2, 3, 4, UTC), None], pyarrow.timestamp("us", "UTC")),
        "nanos": pyarrow.array([1_577_836_800_123_456_789, None], pyarrow.timestamp("ns")),
        "list": pyarrow.array([[1, 2], None]),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    cluster.run(build(tmp_path / "a.parquet"))
    [first, second] = [record.value for _, record in cluster.read("source__files")]
    assert first == (
        b'{"amount":"1.10","big":4611686018427387905,"day":"2024-02-29","at":"2024-01-01T01:02:03.000004Z",'
        b'"nanos":"2020-01-01T00:00:00.123456789","list":[1,2]}'
    )
    assert set(json.loads(second or b"").values()) == {None}


def test_times_of_rows(tmp_path: Path, cluster: InMemoryCluster) -> None:
    now_ms = int(cluster.clock.time() * 1000)
    moments = [now_ms, str(now_ms), datetime.fromtimestamp(now_ms / 1000, UTC).isoformat()]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"at": each}) + "\n" for each in moments))
    cluster.run(build(tmp_path / "a.jsonl", timestamp="at"))
    assert [record.timestamp_ms for _, record in cluster.read("source__files")] == [now_ms] * 3
    (tmp_path / "a.jsonl").write_text('{"at": "2024-01-01T00:00:00"}\n')
    error = failed(InMemoryCluster(), build(tmp_path / "a.jsonl", timestamp="at"), "RowRefused")
    assert "expected milliseconds since 1970, or a date and time with its time zone" in error.message


def test_a_url_of_fsspec(cluster: InMemoryCluster) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for name, numbers in (("in/b.jsonl", (3,)), ("in/a.jsonl", (1, 2)), ("in/c.csv", (9,))):
        memory.pipe(f"/{name}", lines(*numbers).encode())
    try:
        cluster.run(build("memory://in/*.jsonl"))
        memory.pipe("/in/b.jsonl", lines(3, 4).encode())
        cluster.run(build("memory://in/*.jsonl"))
        assert ids(cluster) == [1, 2, 3, 4]
    finally:
        memory.rm("/in", recursive=True)


# -- files that grow and appear -------------------------------------------------------------------------------------


def test_files_that_grow_and_appear_are_read_in_the_order_of_their_names(
    tmp_path: Path, cluster: InMemoryCluster
) -> None:
    (tmp_path / "b.jsonl").write_text(lines(1) + '{"id": 2}')
    app = build(tmp_path / "*.jsonl", watch=10, batch=1)

    def grow() -> None:
        (tmp_path / "b.jsonl").write_text(lines(1, 2, 3))
        (tmp_path / "a.jsonl").write_text(lines(4))
        (tmp_path / "c.jsonl").write_text(lines(5))

    cluster.clock.call_later(15, grow)
    with structlog.testing.capture_logs() as logs:
        cluster.run(app, quiet_s=25)
    assert ids(cluster) == [1, 4, 2, 3, 5]
    waits = [each for each in logs if "has no line end" in each["event"]]
    assert [each["file"] for each in waits] == ["b.jsonl"]
    (tmp_path / "renamed").mkdir()
    for each in list(tmp_path.glob("*.jsonl")):  # names are relative: a folder that moves is not read again
        each.rename(tmp_path / "renamed" / each.name)
    cluster.run(build(tmp_path / "renamed" / "*.jsonl"))
    assert ids(cluster) == [1, 4, 2, 3, 5]


def test_a_last_row_without_line_end_may_get_one_and_may_not_go_on(tmp_path: Path, cluster: InMemoryCluster) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id\n1\n2")
    cluster.run(build(file))
    file.write_text("id\n1\n2\n3")
    cluster.run(build(file))
    assert ids(cluster) == [1, 2, 3]
    file.write_text("id\n1\n2\n34\n")
    assert "its last row, which had no line end, was continued" in failed(cluster, build(file), "InputChanged").message
    file.write_text("id\n1\n2\n3\n4\n")
    cluster.run(build(file))
    assert ids(cluster) == [1, 2, 3, 4]


def test_files_that_do_not_exist_any_more_are_forgotten_beyond_a_number(
    tmp_path: Path, cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_source, "REMEMBERED_MAX", 2)
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_text(lines(number))
    cluster.run(build(tmp_path / "*.jsonl"))
    for number in range(3):
        (tmp_path / f"{number}.jsonl").unlink()
    (tmp_path / "4.jsonl").write_text(lines(4))
    cluster.run(build(tmp_path / "*.jsonl"))
    kept = {name for key, name in cluster.state(build(tmp_path / "*.jsonl"), "source-files") if key == b"files"}
    assert kept == {"file:2.jsonl", "file:3.jsonl", "file:4.jsonl"}


# -- files that changed: the action of each error is carried out ----------------------------------------------------


def replaced(file: Path) -> None:
    file.write_text(lines(7, 8, 3))


def shrunk(file: Path) -> None:
    file.write_text(lines(1))


@pytest.mark.parametrize(("change", "error"), [(shrunk, "InputShrank"), (replaced, "InputChanged")])
@pytest.mark.parametrize("put_back", [True, False])
def test_a_file_that_shrank_or_changed(
    tmp_path: Path, cluster: InMemoryCluster, change: Callable[[Path], None], error: str, put_back: bool
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(1, 2, 3))
    cluster.run(build(tmp_path / "*.jsonl"))
    change(file)
    told = failed(cluster, build(tmp_path / "*.jsonl"), error)
    assert "Put the former content of a.jsonl back" in told.action
    assert "give the file another name" in told.action
    assert ids(cluster) == [1, 2, 3]
    if put_back:
        file.write_text(lines(1, 2, 3, 4))
    else:
        file.write_text(lines(4))
        file.rename(tmp_path / "b.jsonl")
    cluster.run(build(tmp_path / "*.jsonl"))
    assert ids(cluster) == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_parquet_file_that_is_written_again(tmp_path: Path, cluster: InMemoryCluster) -> None:
    import pyarrow
    import pyarrow.parquet

    def write(name: str, *numbers: int) -> None:
        pyarrow.parquet.write_table(pyarrow.table({"id": list(numbers)}), tmp_path / name)

    write("a.parquet", 1, 2)
    cluster.run(build(tmp_path / "*.parquet"))
    write("a.parquet", 1, 2)  # the same bytes, at another time
    cluster.run(build(tmp_path / "*.parquet"))
    write("a.parquet", 1, 3)
    failed(cluster, build(tmp_path / "*.parquet"), "InputChanged")
    write("a.parquet", *range(500))
    failed(cluster, build(tmp_path / "*.parquet"), "InputChanged")
    (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    cluster.run(build(tmp_path / "*.parquet"))
    assert ids(cluster) == [1, 2, *range(500)]
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and no more")
    error = failed(cluster, build(tmp_path / "*.parquet"), "RowUnreadable")
    assert "pyarrow refuses the file" in error.message
    assert "Write the file again" in error.action
    write("c.parquet", 3)
    cluster.run(build(tmp_path / "*.parquet"))
    assert ids(cluster) == [1, 2, *range(500), 3]


@pytest.mark.slow
def test_a_parquet_file_that_is_still_written_is_waited_for(
    tmp_path: Path, cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow
    import pyarrow.parquet

    file, whole = tmp_path / "a.parquet", tmp_path / "whole"
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2]}), whole)
    file.write_bytes(whole.read_bytes()[:-20])
    pyarrow.parquet.write_table(pyarrow.table({"id": [3]}), tmp_path / "b.parquet")
    cluster.clock.call_later(15, lambda: file.write_bytes(whole.read_bytes()))
    cluster.run(build(tmp_path / "*.parquet", watch=10), quiet_s=25)
    assert ids(cluster) == [3, 1, 2]
    file.with_name("c.parquet").write_bytes(b"PAR1 and no more")
    error = failed(cluster, build(tmp_path / "*.parquet", watch=10), "RowUnreadable")
    assert "pyarrow refuses the file" in error.message

    def listed(self: InputFiles) -> list[InputFile]:  # the listing is older than the file
        return [replace(each, size=9, stamp="old") for each in found(self)]

    found = InputFiles.listed
    (tmp_path / "c.parquet").write_bytes(whole.read_bytes())
    monkeypatch.setattr(InputFiles, "listed", listed)
    cluster.run(build(tmp_path / "*.parquet"))
    monkeypatch.undo()
    cluster.run(build(tmp_path / "*.parquet"))
    assert ids(cluster) == [3, 1, 2, 1, 2]


@pytest.mark.parametrize("skip", [False, True])
def test_a_file_that_is_gone_before_its_end(tmp_path: Path, cluster: InMemoryCluster, skip: bool) -> None:
    file, path = tmp_path / "a.jsonl", tmp_path / "*.jsonl"
    file.write_text(lines(*range(100)))
    cluster.run(build(path, batch=1), count=2)
    read = len(ids(cluster))
    assert 2 <= read < 100
    file.rename(tmp_path / "elsewhere")
    (tmp_path / "b.jsonl").write_text(lines(100))
    error = failed(cluster, build(path), "InputGone")
    assert len(ids(cluster)) == read
    assert "Put the file back" in error.action
    assert "`gone='skip'`" in error.action
    if skip:
        cluster.run(build(path, gone="skip"))
        assert ids(cluster) == [*range(read), 100]
    else:
        (tmp_path / "elsewhere").rename(file)
        cluster.run(build(path))
        assert ids(cluster) == list(range(101))


def test_a_locked_file_is_tried_again_and_then_told(tmp_path: Path, cluster: InMemoryCluster) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(1, 2))
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        error = failed(cluster, build(file, patience=60), "InputUnreadable")
        assert "another process holds an exclusive lock on it" in error.message
        assert "end the lock of its writer" in error.action
        cluster.clock.call_later(20, lambda: fcntl.flock(held, fcntl.LOCK_UN))
        cluster.run(build(file, patience=60), quiet_s=30)
    assert ids(cluster) == [1, 2]


def test_a_folder_or_file_that_is_not_there(tmp_path: Path, cluster: InMemoryCluster) -> None:
    folder = tmp_path / "in"
    error = failed(cluster, build(folder / "*.jsonl", patience=1), "InputUnreadable")
    assert "No such file or directory" in error.message
    folder.mkdir()
    cluster.run(build(folder / "*.jsonl"))
    told = failed(cluster, build(folder / "a.jsonl"), "InputMissing")
    assert "there is no such file" in told.message
    cluster.clock.call_later(7, lambda: (folder / "a.jsonl").write_text(lines(1)))
    cluster.run(build(folder / "a.jsonl", watch=2), quiet_s=20)
    assert ids(cluster) == [1]
    refused = failed(cluster, build(folder, format="jsonl"), StorageUnusable.__name__)
    assert "is a folder" in refused.message
    assert f"{folder}/*.csv" in refused.action
    assert "`storage_options`" in failed(cluster, build("no-such://x/a.csv"), StorageUnusable.__name__).action


# -- rows that can't be read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "good", "bad", "mended", "says"),
    [
        ("jsonl", lines(1), "{'id': 2}\n", lines(2), "the line is no JSON"),
        ("csv", "id,x\n1,a\n", "2\n", "2,b\n", "the row has 1 fields, and the file has 2 columns"),
        ("csv", "id,x\n1,a\n", '2,"a"b\n', "2,b\n", "expected after"),
        ("csv", "id\n1\n", '"2\n', "2\n", "ends in the middle of the row at byte 5"),
        ("csv", "id\n1\n", "2\xff\n", "2\n", "can't decode byte"),
    ],
)
def test_a_row_that_is_corrected_is_read(
    tmp_path: Path, cluster: InMemoryCluster, ending: str, good: str, bad: str, mended: str, says: str
) -> None:
    file = tmp_path / f"a.{ending}"
    file.write_bytes((good + bad).encode("latin-1"))
    error = failed(cluster, build(file, batch=1), "RowUnreadable")
    assert says in error.message
    assert "leave what is before it as it is" in error.action or "`encoding`" in error.action
    assert ids(cluster) == [1]
    file.write_text(good + mended)
    cluster.run(build(file, batch=1))
    assert ids(cluster) == [1, 2]


def test_a_line_that_does_not_end(tmp_path: Path, cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_rows, "LINE_BYTES_MAX", 100)
    (tmp_path / "a.jsonl").write_text(json.dumps("x" * 200))
    assert "a line has more than 100 bytes" in failed(cluster, build(tmp_path / "a.jsonl"), "RowUnreadable").message


@pytest.mark.parametrize(
    ("key", "says", "action"),
    [
        ("no", "has no 'no'; it has id", "Correct `key` of the source, or the row."),
        ("id", "has no key", "Let each row have a value for `key` ('id')."),
        (lambda row: row["x"], "made `key` raise KeyError: 'x'", "Correct the function `key` of the source"),
    ],
)
def test_a_key_that_a_row_does_not_have(
    tmp_path: Path, cluster: InMemoryCluster, key: Any, says: str, action: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": null}\n')
    error = failed(cluster, build(tmp_path / "a.jsonl", key=key), "RowRefused")
    assert says in error.message
    assert "The row of file a.jsonl before position 13" in error.message
    assert action in error.action
    (tmp_path / "a.jsonl").write_text('{"id": 1, "no": 2, "x": 3}\n')
    cluster.run(build(tmp_path / "a.jsonl", key=key))
    assert ids(cluster) == [1]


# -- declarations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("path", ""),
        ("format", "xml"),
        ("key", 3),
        ("timestamp", 3),
        ("watch", 0),
        ("batch", 0),
        ("batch", True),
        ("gone", "stop"),
        ("patience", -1),
    ],
)
def test_an_option_that_is_not_allowed(option: str, given: Any) -> None:
    with pytest.raises(SourceOptionInvalid) as refused:
        FileSource("files", **{"path": "a.csv", option: given})
    assert f"`{option}` of source 'files' is {given!r}" in refused.value.message


def test_a_compressed_file_is_refused() -> None:
    with pytest.raises(SourceOptionInvalid, match="compressed files are not read"):
        FileSource("files", "a.csv.gz")


def test_the_version_of_the_code_has_the_users_functions_only() -> None:
    def version(key: Any) -> str:
        return build("a.csv", key=key).topology().code_version

    def by_a(row: Any) -> Any:
        return row["a"]

    def by_b(row: Any) -> Any:
        return row["b"]

    assert version(by_a) != version(by_b)
    assert FileSource("files", "a.csv").version_functions == ()
