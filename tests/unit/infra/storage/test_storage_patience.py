"""An object store that accepts connections and never answers is an error, for each kind of access."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.infra.storage import objects
from holdfast.infra.storage.input_files import InputFiles
from holdfast.infra.storage.objects import FsspecObjects
from holdfast.infra.storage.output_files import OutputFiles

URL = "s3://bucket/files"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The options of a client for a store that accepts connections and never answers."""
    import s3fs

    monkeypatch.setattr(objects, "READ_TIMEOUT_S", 0.1)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "access",
    [
        lambda options: FsspecObjects(URL, options).sizes("x"),
        lambda options: FsspecObjects(URL, options).write("x", [b"1"]),
        lambda options: OutputFiles(URL, options).write("x", b"1"),
        lambda options: InputFiles(URL + "/*.csv", options).listed(),
    ],
    ids=["lists", "checkpoints", "sinks", "sources"],
)
def test_a_silent_store_is_an_error(silent: dict[str, Any], access: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(Exception, match="(?i)timeout|timed out"):
        access(silent)
