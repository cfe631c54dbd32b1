"""Hostile names in manifests, in listings and in the archive of orphans (deleted resources that had no owner).

Such a name never leads a read or a deletion to a path outside its folder.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile

from holdfast.infra.paths import Paths
from holdfast.infra.settings import load_settings
from holdfast.infra.system.process import own_identity
from holdfast.infra.system.rooted import PathOutside, inside
from holdfast.processors.audits.stores import checkpoint_manifests
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.orphans.kinds import FolderThing, ObjectThing, thing_of
from holdfast.processors.lifecycle.orphans.put_back import _check_files
from holdfast.processors.lifecycle.plans.facts.orphans import Archived, Manifest, Orphan
from holdfast.processors.snapshots.facts import points_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "mine").write_text("mine")
    return tmp_path / "victim"


def named(folder: Path, number: str, path: Any) -> None:
    (folder / number).mkdir(parents=True)
    task = {"task": "orders-0", "partition": 0, "path": path, "stores": {}}
    manifest = {"checkpoint_id": number, "taken_at": 1.5, "tasks": [task]}
    (folder / number / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("path", ["{victim}", "{folder}/1/orders-0", "../../../victim", "", None, 7])
def test_a_local_checkpoint_that_names_another_folder_is_not_read(tmp_path: Path, victim: Path, path: Any) -> None:
    folder = tmp_path / "checkpoints" / "orders"
    named(folder, "1", str(folder / "1" / "orders-0"))
    named(folder, "2", path.format(victim=victim, folder=folder) if isinstance(path, str) else path)
    assert [each["checkpoint_id"] for each in checkpoint_manifests(folder)] == ["1"]


def test_a_checkpoint_on_this_machine_gives_its_points_with_all_that_its_manifest_says(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "orders"
    (folder / "1").mkdir(parents=True)
    at = {"changelog": "orders-counts-changelog", "topic_id": "id", "offset": 7}
    path = str(folder / "1" / "orders-0")
    task = {"task": "orders-0", "partition": 0, "path": path, "inputs": {"orders": 5}, "sources": {"orders": "source"}}
    manifest = {"checkpoint_id": "1", "taken_at": 1.5, "tasks": [{**task, "stores": {"counts": at}}]}
    (folder / "1" / "manifest.json").write_text(json.dumps(manifest))
    (point,) = points_of(checkpoint_manifests(folder), "counts")
    assert (point.end, point.taken_at, point.inputs, point.sources) == (7, 1.5, {"orders": 5}, {"orders": "source"})


def test_a_listing_of_the_store_writes_only_into_the_copy(tmp_path: Path, victim: Path) -> None:
    settings = load_settings(home=tmp_path / "home", checkpoints={"url": "memory://hostile"})
    files = fsspec.filesystem("memory")
    key = "/hostile/orders/orders-0/../../../victim/mine"  # an object store accepts any key
    files.store[key] = MemoryFile(files, key, b"hostile")
    part = tmp_path / "part"
    part.mkdir()
    try:
        assert list(ObjectThing(settings)._sizes("orders/orders-0")) == [key.removeprefix("/hostile/")]
        with pytest.raises(PathOutside):
            ObjectThing(settings).copy(Orphan("checkpoint", "orders/orders-0", "orders", ""), {}, part)
    finally:
        del files.store[key]
    assert (victim / "mine").read_text() == "mine"
    assert list(part.iterdir()) == []


@pytest.mark.parametrize("name", ["..", "../..", ".", ""])
def test_the_name_of_a_checkpoint_folder_leads_to_no_other_folder(tmp_path: Path, name: str) -> None:
    settings = load_settings(home=tmp_path / "home")
    settings.paths.checkpoint_folders.mkdir(parents=True)
    things = [FolderThing(partial(inside, settings.paths.checkpoint_folders))]
    if "/" not in name:
        things.append(thing_of("checkpoint", name, settings, None))  # type: ignore[arg-type]
    for thing in things:
        with pytest.raises(PathOutside):
            thing.look(Orphan("checkpoint", name, "orders", ""))
        with pytest.raises(PathOutside):
            thing.finish(name, {"path": str(tmp_path / ".deleted-1-home")}, orphan=False)
    assert settings.paths.checkpoint_folders.is_dir()


@pytest.mark.parametrize("trash", ["{victim}", "{victim}/.deleted-1-mine", "{state}/orders", ".deleted-1-orders"])
def test_the_record_of_a_deletion_deletes_nothing_but_what_it_renamed(tmp_path: Path, victim: Path, trash: str) -> None:
    state = tmp_path / "state"
    for folder in (state / "orders", state / ".deleted-1-orders", victim / ".deleted-1-mine"):
        folder.mkdir(parents=True)
    leftovers = {"path": trash.format(victim=victim, state=state)}
    with pytest.raises(PathOutside, match="Nothing was deleted"):
        FolderThing().finish(str(state / "orders"), leftovers, orphan=False)
    assert (victim / ".deleted-1-mine").is_dir()
    assert (state / "orders").is_dir()
    FolderThing().finish(str(state / "orders"), {"path": str(state / ".deleted-1-orders")}, orphan=False)
    assert [path.name for path in state.iterdir()] == ["orders"]


def test_a_link_in_the_archive_deletes_nothing_outside_of_it(tmp_path: Path, victim: Path) -> None:
    archive = Archive(tmp_path / "archive")
    (archive.root / "topic" / "orders" / "1.part").mkdir(parents=True)
    with archive.held():
        pass
    assert not (archive.root / "topic" / "orders" / "1.part").exists()
    (victim / "orders" / "2.part").mkdir(parents=True)
    (archive.root / "group").symlink_to(victim)
    with pytest.raises(PathOutside), archive.held():
        pass
    assert (victim / "orders" / "2.part").is_dir()


def test_the_manifest_of_a_copied_topic_names_only_files_of_the_copy(tmp_path: Path, victim: Path) -> None:
    about = {"sha256": {str(victim / "mine"): "0"}}
    manifest = Manifest(
        kind="topic", name="t", processor="p", why="", archived_at=NOW, who="me", facts={}, about=about, files={}
    )
    with pytest.raises(PathOutside):
        _check_files(Archived(tmp_path / "archive" / "topic" / "t" / "1", manifest))


def test_the_answer_of_a_worker_names_only_its_own_checkpoints(tmp_path: Path, victim: Path) -> None:
    paths = Paths(tmp_path / "home")
    answer = {"checkpoint_id": "1", "tasks": [{"task": "orders-0", "path": str(victim)}]}
    with answering(json.dumps(answer).encode()) as url:
        paths.run.mkdir(parents=True)
        endpoint = {"pid": os.getpid(), "process": str(own_identity()), "url": url, "token": "t"}
        paths.endpoint("orders", "0").write_text(json.dumps(endpoint))
        with pytest.raises(PathOutside):
            ProcessorClient("orders", "0", paths).checkpoint(5.0)


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """Start a server that answers every POST with these bytes, like a worker. Returns its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
