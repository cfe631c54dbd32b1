"""A real RocksDB with a checkpoint, a folder as the checkpoint store, and a store that fails on command."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.storage.errors import StorageFailed
from holdfast.infra.storage.objects import FsspecObjects
from holdfast.processors.engine.checkpoints.decision import Wanted
from holdfast.processors.engine.checkpoints.fetch import Fetched, Fetcher
from holdfast.processors.engine.checkpoints.manifest import Manifest, Place
from holdfast.processors.engine.checkpoints.ports import Job
from holdfast.processors.engine.checkpoints.upload import Taken, Uploaded, Uploader
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases, StateReader
from holdfast.processors.engine.state.databases.task_meta import StoreOffset, TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore

STORE, CHANGELOG, SOURCE = "counts", "group-counts-changelog", "orders"
PLACE = Place("group", "orders-0")
NOW = 1_000_000.0


class Broken(Exception):
    """Raised in place of a crash: the process ends here."""


class BreakingObjects:
    """A real object store for checkpoints whose operation number ``at`` fails.

    If the process dies, every later operation fails as well. If ``after`` is set, the failed operation is carried out,
    and only its answer is lost.
    """

    def __init__(self, objects: FsspecObjects) -> None:
        self.objects = objects
        self.shown = objects.shown
        self.operations: list[str] = []
        self.at: int | None = None
        self.after = False
        self.dies = False

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._done("sizes", lambda: self.objects.sizes(prefix))

    def read(self, name: str) -> bytes:
        return self._done("read", lambda: self.objects.read(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        return iter(self._done("chunks", lambda: list(self.objects.chunks(name))))

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        self._done("write", lambda: self.objects.write(name, chunks))

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._done("delete", lambda name=name: self.objects.delete([name]))

    def _done(self, what: str, act: Callable[[], Any]) -> Any:
        number = len(self.operations)
        self.operations.append(what)
        broken = self.at is not None and (number == self.at or (self.dies and number > self.at))
        if broken and not (self.after and number == self.at):
            raise Broken if self.dies else StorageFailed("it is away", action="wait")
        found = act()
        if broken:
            raise Broken if self.dies else StorageFailed("the answer is lost", action="wait")
        return found


@dataclass
class Bench:
    """The store of one task, with its databases, its checkpoint store and a clock."""

    folder: Path
    objects: Any
    databases: RocksDatabases = field(default_factory=RocksDatabases)
    offset: int = 1_000_000
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    suspect: set[str] = field(default_factory=set)
    now: float = NOW

    def __post_init__(self) -> None:
        self.store = TaskStore(self.databases, self.folder / "live")

    def write(self, count: int = 200, salt: str = "") -> TaskMeta:
        """Commit this number of keys with new values. The store's changelog offset increases."""
        self.offset += 1_000
        changes = [(b"\x06counts" + b"%06d" % number, f"{salt}{self.offset}".encode() * 20) for number in range(count)]
        meta = self.meta
        self.store.write(changes, meta)
        return meta

    @property
    def meta(self) -> TaskMeta:
        at = StoreOffset(CHANGELOG, "changelog-id", self.offset, {SOURCE: self.offset // 2})
        return TaskMeta({SOURCE: self.offset // 2}, {STORE: at}, 7, complete_at=NOW - 10, sources={SOURCE: "source-id"})

    def take(self) -> Taken:
        path = self.folder / "taken" / str(next(self.ids))
        self.store.checkpoint(path)
        return Taken(PLACE, path, 0, "code", NOW, self.meta)

    def uploader(self, holder: str = "me", objects: Any = None) -> Uploader:
        return Uploader(
            objects or self.objects,
            self.databases,
            holder,
            lambda: f"{holder}{next(self.ids)}",
            lambda: self.now,
            {},
            self.suspect,
        )

    def upload(self, uploader: Uploader | None = None, taken: Taken | None = None) -> Uploaded:
        return run((uploader or self.uploader()).run(taken or self.take(), Job()))

    def wanted(self, **changes: Any) -> Wanted:
        facts = ChangelogFacts(CHANGELOG, "changelog-id", 0, self.offset + 100, 86_400.0)
        return Wanted(
            **{
                "task": PLACE.task,
                "database": "rocksdb",
                "changelogs": {STORE: facts},
                "committed": {SOURCE: self.offset},
                "sources": {SOURCE: "source-id"},
                "now": NOW,
                "replay": self.offset + 100,
                **changes,
            }
        )

    def fetch(self, objects: Any = None, **changes: Any) -> Fetched:
        fetcher = Fetcher(objects or self.objects, self.databases, self.suspect)
        path = self.folder / "fetched" / str(next(self.ids))
        return run(fetcher.run(PLACE, self.wanted(**changes), path, Job()))

    def manifests(self) -> list[str]:
        return sorted(self.objects.sizes(PLACE.manifests))

    def manifest(self, name: str) -> Manifest:
        return Manifest.decode(self.objects.read(name))

    def object(self, name: str) -> Path:
        return self.folder / "objects" / name

    def holds(self, path: Path) -> dict[bytes, bytes]:
        reader = StateReader(path)
        try:
            assert reader.meta() is not None
            return dict(reader.items(STORE))
        finally:
            reader.close()

    def expected(self) -> dict[bytes, bytes]:
        return dict(self.store.items(STORE))

    def everything_is_whole(self) -> None:
        """Check that all files that a manifest names exist with the right size."""
        there = self.objects.sizes(PLACE.files)
        for name in self.manifests():
            for file in self.manifest(name).files:
                assert there.get(file.object) == file.size, (name, file)


def run(steps: Any) -> Any:
    """Run a generator of steps to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, FsspecObjects(str(tmp_path / "objects")))
    yield made
    made.store.close()


@pytest.fixture
def breaking(bench: Bench) -> BreakingObjects:
    return BreakingObjects(bench.objects)


@pytest.fixture
def steps_run() -> Callable[[Any], Any]:
    return run
