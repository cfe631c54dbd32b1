"""kill -9 of workers whose sinks write files: readers see each result once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fsspec
import pytest
from confluent_kafka import Producer

from tests.kafka.killed import Kill, Scenario
from tests.kafka.object_store import BUCKET, S3Server
from tests.mechanics.tiers import variants

KEYS = 40
PER_ROUND = 2_000


class Written(Scenario):
    """Counts messages by key, in state. Two sinks write each count: one to Parquet files, one to lines of JSON."""

    head = """
from holdfast.sinks import JsonLinesSink, ParquetSink


def count(value, state):
    return {"n": state.increment("n")}
"""
    topology = """
        folder = os.environ.get("TEST_FOLDER", "unused")
        counts = made.dataframe(made.topic(group + "-in")).apply(count, stateful=True, store="counts")
        counts.sink(ParquetSink(folder + "/parquet"))
        counts.sink(JsonLinesSink(folder + "/lines", name="lines"))
        """

    kinds = ("parquet", "lines")

    @property
    def folder(self) -> Path:
        return Path(self.killed.paths.home) / "written"

    def prepare(self) -> None:
        for one in self.workers:
            one.environment["TEST_FOLDER"] = str(self.folder)

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        for turn, loses_disk in enumerate((False, True), start=1):
            producer = Producer({"bootstrap.servers": self.stream.bootstrap, "partitioner": "murmur2_random"})
            for number in range(PER_ROUND):
                producer.produce(self.stream.source, b"1", f"k{number % KEYS}".encode())
            assert producer.flush(60) == 0
            before = len(self.names())
            yield Kill(lambda b=before: len(self.names()) > b, "files", loses_disk=loses_disk)
            self.wait(self.has_committed(turn * PER_ROUND), "the messages to be committed")

    def names(self, kind: str = "") -> list[str]:
        return [str(each) for each in (self.folder / kind).rglob("*")]

    def rows(self, kind: str) -> Counter[tuple[str, int, int, int]]:
        import pyarrow.parquet as pq

        found: list[dict[str, Any]] = []
        for file in (self.folder / kind).glob("*.*"):
            if file.suffix == ".parquet":
                found += pq.read_table(file).to_pylist()
            elif file.suffix == ".jsonl":
                found += [json.loads(line) for line in file.read_text().splitlines()]
        return Counter((_text(row["_key"]), row["n"], row["_partition"], row["_offset"]) for row in found)

    def truth(self) -> dict[str, Counter[Any]]:
        return {}

    def check_ended(self) -> None:
        counts: Counter[str] = Counter()
        wanted: Counter[tuple[str, int, int, int]] = Counter()
        for number, records in enumerate(self.partitions()):
            for record in records:
                key = (record.key or b"").decode()
                counts[key] += 1
                wanted[key, counts[key], number, record.offset] += 1
        for kind in self.kinds:
            found = self.rows(kind)
            assert (wanted - found, found - wanted) == (Counter(), Counter())
            self.check_staged(kind)

    def check_staged(self, kind: str) -> None:
        assert list((self.folder / kind / "_staged").rglob("*.*")) == []


class OnS3(Written):
    """The same files in an S3 server, whose moves are a copy and a deletion."""

    topology = """
        url, given = os.environ.get("TEST_FOLDER", "unused"), json.loads(os.environ.get("TEST_OPTIONS", "{}"))
        counts = made.dataframe(made.topic(group + "-in")).apply(count, stateful=True, store="counts")
        counts.sink(ParquetSink(url + "/parquet", options=given))
        counts.sink(JsonLinesSink(url + "/lines", name="lines", options=given))
        """
    head = "import json\n" + Written.head

    def __init__(self, stream: Any, worker: Callable[..., Any], workers: int, s3: S3Server) -> None:
        super().__init__(stream, worker, workers)
        self.files = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True, **s3.options())
        self.place = f"{BUCKET}/{stream.group}"
        self._options = json.dumps(s3.options())

    def prepare(self) -> None:
        for one in self.workers:
            one.environment |= {"TEST_FOLDER": f"s3://{self.place}", "TEST_OPTIONS": self._options}

    def names(self, kind: str = "") -> list[str]:
        return list(self.files.find(f"{self.place}/{kind}"))

    def rows(self, kind: str) -> Counter[tuple[str, int, int, int]]:
        import pyarrow.parquet as pq

        found: list[dict[str, Any]] = []
        for name in self.names(kind):
            content = self.files.cat_file(name)
            if name.endswith(".parquet"):
                found += pq.read_table(BytesIO(content)).to_pylist()
            elif name.endswith(".jsonl"):
                found += [json.loads(line) for line in content.splitlines()]
        return Counter((_text(row["_key"]), row["n"], row["_partition"], row["_offset"]) for row in found)

    def check_staged(self, kind: str) -> None:
        assert [name for name in self.names(kind) if "/_staged/" in name] == []


class Appended(Written):
    """The same counts, appended to an Iceberg table."""

    head = Written.head.replace("JsonLinesSink, ParquetSink", "IcebergSink")
    topology = """
        folder = os.environ.get("TEST_FOLDER", "/unused")
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        counts = made.dataframe(made.topic(group + "-in")).apply(count, stateful=True, store="counts")
        counts.sink(IcebergSink("written.counts", catalog, create=True))
        """
    kinds = ("iceberg",)

    def prepare(self) -> None:
        super().prepare()
        self.folder.mkdir()

    def rows(self, kind: str) -> Counter[tuple[str, int, int, int]]:
        from pyiceberg.catalog import load_catalog

        uri, place = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}"
        table = load_catalog("holdfast", type="sql", uri=uri, warehouse=place).load_table("written.counts")
        found = table.scan().to_arrow().to_pylist()
        return Counter((_text(row["_key"]), row["n"], row["_partition"], row["_offset"]) for row in found)


def _text(key: Any) -> str:
    return key.decode() if isinstance(key, bytes) else key


@pytest.mark.parametrize("workers", variants([2, 1]))
def test_kill_9_leaves_each_result_in_the_files_once(stream: Any, worker: Callable[..., Any], workers: int) -> None:
    Written(stream, worker, workers).live()


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_leaves_each_result_in_the_objects_of_s3_once(
    stream: Any, worker: Callable[..., Any], s3: S3Server, workers: int
) -> None:
    OnS3(stream, worker, workers, s3).live()


@pytest.mark.thorough
def test_kill_9_leaves_each_result_in_the_iceberg_table_once(stream: Any, worker: Callable[..., Any]) -> None:
    Appended(stream, worker, 1).live()
