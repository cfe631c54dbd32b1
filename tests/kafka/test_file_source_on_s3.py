"""``FileSource`` on a real S3 server: files by a pattern, new files, and a file that was replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.runtime.idle import SourceFailed
from holdfast.sources import FileSource
from tests.kafka.object_store import BUCKET, S3Server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server.start()
    server.stop()


def build(s3: S3Server, **given: Any) -> Application:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_backend="memory"
    )
    url = f"s3://{BUCKET}/in/**/*.jsonl"
    app.add_source(FileSource("files", url, storage_options=s3.options(), batch=2, patience=0, **given))
    return app


def ids(cluster: InMemoryCluster) -> list[int]:
    return [json.loads(record.value or b"")["id"] for _, record in cluster.read("source__files")]


@pytest.mark.thorough
def test_objects_are_files(s3: S3Server, tmp_path: Path) -> None:
    import fsspec

    store, cluster = fsspec.filesystem("s3", **s3.options()), InMemoryCluster()

    def put(name: str, *numbers: int) -> None:
        store.pipe(f"{BUCKET}/in/{name}.jsonl", b"".join(b'{"id": %d}\n' % number for number in numbers))

    put("a/1", *range(5))
    put("b/1", 5, 6)
    cluster.run(build(s3))
    put("b/1", 5, 6, 7)  # an object grows by being replaced
    put("a/2", 8)
    cluster.run(build(s3))
    assert ids(cluster) == [*range(7), 8, 7]
    put("b/1", 9, 9, 9)
    with pytest.raises(SourceFailed) as changed:
        cluster.run(build(s3))
    assert changed.value.fields["error"] == "InputChanged"
    put("b/1", 5, 6, 7)
    cluster.run(build(s3))
    s3.stop()
    with pytest.raises(SourceFailed) as away:
        cluster.run(build(s3))
    assert away.value.fields["error"] == "InputUnreadable"
    s3.start()
    put("c", 10)
    cluster.run(build(s3))
    assert ids(cluster) == [*range(7), 8, 7, 10]
