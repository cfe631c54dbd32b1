"""Checks each checkpoint in the simulation's checkpoint store, and damages or forges checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.checkpoints.manifest import CheckpointFile, Manifest, Place
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from tests.simulation.disk import content_of, files_of
from tests.simulation.objects import SimulatedObjects
from tests.simulation.verifier import InvariantBroken

#: The topic id of a changelog that was deleted. Forged checkpoints belong to this topic.
FORMER_TOPIC = "former-topic-id"

Look = Callable[[str, Path, dict[bytes, bytes]], None]


class CheckpointCheck:
    """Checks each checkpoint when its manifest (list of files) is written.

    The checkpoint must be complete, and equal to the compacted changelog.

    Args:
        store: The store.
        look: Checks the content of a database.
        on_broken: Called with the error of each checkpoint that is wrong when it appears.
    """

    def __init__(self, store: SimulatedObjects, look: Look, on_broken: Callable[[InvariantBroken], None]) -> None:
        self._store = store
        self._look = look
        self._on_broken = on_broken
        self.forged: set[str] = set()
        store.on_written = self._written

    def _written(self, name: str) -> None:
        if "/manifests/" in name:
            try:
                self.check(name)
            except InvariantBroken as broken:
                self._on_broken(broken)

    def check(self, name: str) -> None:
        """Check one checkpoint.

        Raises:
            InvariantBroken: An object of the checkpoint is missing or changed, or its content was never committed.
        """
        manifest = Manifest.decode(self._store.objects[name])
        files = {}
        for file in manifest.files:
            if file.object in self._store.damaged:
                return
            raw = self._store.objects.get(file.object)
            if raw is None or len(raw) != file.size or hashlib.sha256(raw).hexdigest() != file.sha256:
                raise InvariantBroken("checkpoints", f"{name} names {file.object}, which is not there as it says")
            files[file.name] = raw
        content = content_of(files)
        if TaskMeta.decode(content[META_KEY]) != manifest.meta:
            raise InvariantBroken("checkpoints", f"{name} has other offsets than its database")
        self._look("store", Path(manifest.task), content)

    def check_all(self) -> None:
        """Check every checkpoint that exists at the end of the simulation.

        Checkpoints that faults have damaged or forged are left out.
        """
        for name in self.manifests():
            if name not in self._store.damaged and name not in self.forged:
                self.check(name)

    def manifests(self) -> list[str]:
        """The names of all manifests, oldest first."""
        return sorted(name for name in self._store.objects if "/manifests/" in name)


def damage(store: SimulatedObjects, check: CheckpointCheck, random: Random) -> None:
    """Damage an object: flip a bit, truncate it, or delete it.

    Mostly, the object belongs to a task's newest checkpoint.
    """
    names = sorted(name for name in store.objects if "/uploads/" not in name)
    newest = {name.rpartition("/")[0]: name for name in check.manifests() if name not in store.damaged}
    if newest and random.random() < 0.7:
        manifest = Manifest.decode(store.objects[random.choice(sorted(newest.values()))])
        # Prefer data files. RocksDB does not notice their damage when it opens the database, only at a later read.
        names = [file.object for file in manifest.files if file.object in store.objects and file.size > 2]
    if not names:
        return
    name = random.choice(names)
    raw = store.objects[name]
    store.damaged.add(name)
    how = random.choice(["flipped", "flipped", "flipped", "flipped", "cut", "gone"])
    if how == "gone" or not raw:
        del store.objects[name]
    elif how == "cut":
        store.objects[name] = raw[: random.randrange(len(raw))]
    else:
        at = random.choice([len(raw) - 1, random.randrange(len(raw))])
        store.objects[name] = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def forge(store: SimulatedObjects, check: CheckpointCheck, random: Random, number: int) -> None:
    """Add a forged checkpoint: it names the correct changelog, but the id of a deleted topic with the same name."""
    whole = [name for name in check.manifests() if name not in store.damaged and name not in check.forged]
    if not whole:
        return
    manifest = Manifest.decode(store.objects[random.choice(whole)])
    if any(file.object in store.damaged or file.object not in store.objects for file in manifest.files):
        return
    content = content_of({file.name: store.objects[file.object] for file in manifest.files})
    stores = {
        name: at._replace(topic_id=FORMER_TOPIC, offset=at.offset + random.randint(0, 30))
        for name, at in manifest.meta.stores.items()
    }
    meta = replace(manifest.meta, stores=stores)
    content = {key: value for key, value in content.items() if random.random() < 0.7}
    content[META_KEY] = meta.encode()
    place, upload = Place(manifest.processor, manifest.task), f"forged{number}"
    files = []
    for name, raw in files_of(content).items():
        stored = place.file(upload, name)
        store.objects[stored] = raw
        files.append(CheckpointFile(name, stored, len(raw), hashlib.sha256(raw).hexdigest()))
    forged = replace(manifest, meta=meta, files=tuple(files), checkpoint_id=f"{10**11 + number}-{upload}")
    name = place.manifest(10**11 + number, upload)
    check.forged.add(name)
    store.objects[name] = forged.encode()
