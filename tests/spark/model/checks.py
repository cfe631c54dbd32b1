"""Checks the promises (invariants) after each step of a modelled store, in plain Python on rows read by pyiceberg.

- table: the branch main equals the store's content at the offsets of its newest snapshot.
- history: it has each change once, and folding its rows gives the content of every snapshot's tag.
- typed: each typed column equals the field in the value's JSON.
- tags: every tag can be read, and shows the content that it names.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.assets.spark.catalog.tables import COLUMNS
from holdfast.processors.engine.changelog.format import event_time_ms
from holdfast.processors.engine.schema.types import column_name
from holdfast.processors.snapshots.manifest import SnapshotManifest
from holdfast.processors.snapshots.names import REACH_TAG, SNAPSHOT_TAG, TIME_TAG
from tests.spark.model import promised
from tests.spark.model.life import STORE, Life
from tests.spark.model.owner import Content
from tests.spark.model.reading import Row, Seen

HISTORY = f"{STORE}_history"
_FIXED = {name for name, _, _ in COLUMNS}
_LOGGED = ("put", "delete")
_DELETED = ("delete", "base_delete")
#: Event times that a timestamp column can hold, in milliseconds since the epoch: the years 1 to 9999.
_TIMES_MS = range(-62_135_596_800_000, 253_402_300_800_000)


class PromiseBroken(AssertionError):
    """The tables differ from the model. ``promise`` names the broken promise."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise


def require(promise: str, holds: bool, detail: object = "") -> None:
    """Raise PromiseBroken if the promise does not hold."""
    if not holds:
        raise PromiseBroken(promise, str(detail))


def check(life: Life, *, every_tag: bool) -> None:
    """Check all promises. Versions that were already read are read again only with ``every_tag``."""
    seen = life.tables.seen(STORE)
    if seen is None:
        return
    if every_tag:
        life.tables.forget()
    changes = life.tables.seen(HISTORY)
    rows = life.tables.rows(HISTORY, changes.head) if changes is not None else []
    check_main(life, seen)
    check_history(rows)
    for tag, version in sorted(seen.tags.items()):
        check_tag(life, seen, tag, version, rows)
    if rows:
        assert changes is not None
        require("history", REACH_TAG in changes.tags or life.newest is None, "no tag keeps its reach")


def check_main(life: Life, seen: Seen) -> None:
    """Check that the branch main shows one complete snapshot: the newest, or that of a run with an unclear outcome."""
    found = seen.published()
    shown = life.tables.main(STORE)
    if found is None:
        require("table", not shown and life.newest is None, f"no snapshot, {len(shown)} rows, newest {life.newest}")
        return
    manifest = found[1]
    may_be = {life.newest, *life.unsure}
    require("table", manifest.snapshot_id in may_be, f"main is {manifest.snapshot_id}, not of {may_be}")
    compare("table", content_of(shown), life.taken[manifest.snapshot_id].content)
    if life.shape_known or promised.COLUMNS_CHANGE_WITH_THE_PUBLISH:
        check_typed(life, shown, "main")
    check_manifest(life, manifest)
    check_order(seen)


def check_order(seen: Seen) -> None:
    """Check that the branch main never goes back to an older changelog (generation), or to an earlier offset in one."""
    line, at = [], seen.head
    while at is not None and at in seen.versions:
        manifest = seen.manifest(at)
        line += [manifest] if manifest is not None else []
        at = seen.versions[at][0]
    for newer, older in itertools.pairwise(line):
        back = newer.generation < older.generation or (
            newer.generation == older.generation and any(newer.ends[n] < end for n, end in older.ends.items())
        )
        require("order", not back, f"{newer.generation} {newer.ends} after {older.generation} {older.ends}")


def check_manifest(life: Life, manifest: SnapshotManifest) -> None:
    """Check that the manifest has the checkpoints' offsets. All its partitions must have the same topic id."""
    points = life.taken[manifest.snapshot_id].points
    for part in manifest.partitions:
        point = points[part.partition]
        seen, wanted = (part.topic_id, part.end, part.inputs), (point.topic_id, point.end, point.inputs)
        require("vector", point.end == 0 or seen == wanted, f"{seen}, expected {wanted}")
    lives = {part.topic_id for part in manifest.partitions if part.end}
    require("vector", len(lives) <= 1, f"partitions of {lives} beside each other")


def check_history(rows: Iterable[Row]) -> None:
    """Check that the history table has each change of the changelog at most once."""
    logged = [(row["generation"], row["store_partition"], row["offset"]) for row in rows if row["op"] in _LOGGED]
    twice = sorted(each for each in set(logged) if logged.count(each) > 1)
    require("history", not twice, f"there twice: {twice[:5]}")


def check_tag(life: Life, seen: Seen, tag: str, version: int, changes: list[Row]) -> None:
    """Check that the version of a tag can be read.

    It must equal the content that the tag's name and the history give.
    """
    require("tags", version in seen.versions, f"{tag} is of an expired version")
    manifest = seen.manifest(version)
    require("tags", manifest is not None, f"{tag} has no manifest")
    assert manifest is not None
    rows = life.tables.rows(STORE, version)
    wanted, folded = expected(life, tag, manifest), fold(life, changes, manifest)
    compare(f"tag of a {'past version' if manifest.from_history else 'snapshot'}", content_of(rows), wanted, tag)
    compare("history", folded, wanted, f"folded to {tag}")
    if not manifest.from_history or promised.PAST_VERSIONS_HAVE_THE_SHAPE_OF_THEIR_SCHEMA:
        check_typed(life, rows, tag)


def expected(life: Life, tag: str, manifest: SnapshotManifest) -> Content:
    """The content that a tag must show."""
    means = life.times.get(tag) if tag.startswith(TIME_TAG) else None
    if tag.startswith(SNAPSHOT_TAG):
        require("tags", tag == SNAPSHOT_TAG + manifest.snapshot_id, f"{tag} is on {manifest.snapshot_id}")
        means = manifest.taken_at if manifest.from_history else manifest.snapshot_id
    if isinstance(means, str):
        require("tags", manifest.snapshot_id == means, f"{tag} shows {manifest.snapshot_id}, not {means}")
        return life.taken[means].content
    require("tags", means is not None and means in life.times.values(), f"nobody asked for {tag}, {means}")
    assert means is not None
    return life.owner.held_at(means)


def fold(life: Life, rows: list[Row], manifest: SnapshotManifest) -> Content:
    """Return the store's content at a version's offsets, or at its moment, computed from the history table."""
    found: dict[tuple[int, bytes], tuple[tuple[Any, ...], Row]] = {}
    for row in rows:
        if _is_of(life, row, manifest):
            key = row["store_partition"], row["key"]
            order = row["generation"], row["offset"], row["op"] in _LOGGED, row["timestamp"]
            if key not in found or found[key][0] <= order:
                found[key] = order, row
    return {key: row["value"] for key, (_, row) in found.items() if row["op"] not in _DELETED}


def _is_of(life: Life, row: Row, manifest: SnapshotManifest) -> bool:
    micros = round(row["timestamp"].timestamp() * 1e6)
    if manifest.from_history:
        return bool(row["generation"] <= manifest.generation and micros <= round(manifest.taken_at * 1e6))
    if row["generation"] != manifest.generation:
        return bool(row["generation"] < manifest.generation)
    point = life.taken[manifest.snapshot_id].points[row["store_partition"]]
    end = manifest.ends[row["store_partition"]]
    corrects = row["op"] not in _LOGGED and row["offset"] == end and micros <= round(point.taken_at * 1e6)
    return bool(row["offset"] < end or corrects)


def content_of(rows: Iterable[Row]) -> Content:
    """The rows of a table as a dict, in the form that the owner's model uses."""
    pairs = [((row["store_partition"], row["key"]), row["value"]) for row in rows]
    require("table", len(pairs) == len(dict(pairs)), "a key is there twice")
    return dict(pairs)


def compare(promise: str, seen: Content, wanted: Content, where: str = "main") -> None:
    """Require that both contents are equal."""
    differing = sorted(key for key in {*seen, *wanted} if seen.get(key) != wanted.get(key))
    shown = [f"{key}: {seen.get(key)!r}, expected {wanted.get(key)!r}" for key in differing[:3]]
    require(promise, not differing, f"{where} has {'; '.join(shown)} ({len(differing)} keys)")


# -- typed columns ---------------------------------------------------------------------------------------------


def check_typed(life: Life, rows: Iterable[Row], where: str) -> None:
    """Check that each typed column equals the JSON. A value with an event time out of range has no typed columns."""
    if life.schema is None:
        return
    for row in rows:
        value, typed = row["value"], {name: cell for name, cell in row.items() if name not in _FIXED}
        in_range = event_time_ms(value) in _TIMES_MS
        said = json.loads(row["json"])
        require("typed", (row["event_timestamp"] is not None) == in_range, f"{where}: the event time of {row}")
        require("typed", is_said(typed, said if in_range else {}), f"{where}: {typed} of the JSON {said}")


def is_said(typed: Mapping[str, Any], said: Any) -> bool:
    """Whether the typed columns equal the JSON value."""
    if loose(typed) == loose({"content": said}):  # a separate column holds the values that are not JSON objects
        return True
    if not isinstance(said, Mapping):
        return False
    found = loose(typed)
    # A column has the JSON name, or this name with four digits if the name is already taken by another JSON name.
    names = {column: name for name in said for column in (column_name(name), _with_digits(name))}
    return bool(
        found.keys() <= names.keys()
        and loose({names[column]: cell for column, cell in found.items()}) == loose(said)
        and len({names[column] for column in found}) == len(found)
    )


def _with_digits(name: str) -> str:
    return f"{column_name(name)}_{hashlib.sha256(name.encode()).hexdigest()[:4]}"


def loose(value: Any) -> Any:
    """Return a value as a wider column type shows it: without nulls, numbers as floats, JSON texts parsed."""
    if isinstance(value, Mapping):
        found = {name: loose(each) for name, each in value.items()}
        return {name: each for name, each in found.items() if each is not None}
    if isinstance(value, list):
        return [loose(each) for each in value]
    if isinstance(value, str):
        try:
            return loose(json.loads(value))
        except ValueError:
            return value
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
