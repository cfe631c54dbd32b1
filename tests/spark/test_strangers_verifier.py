"""``docs/verify.py`` confirms published versions, and finds tampered ones."""

from __future__ import annotations

import ast
import json
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from xxhash import xxh64_intdigest

from holdfast.assets.spark import past
from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.catalog import load_table
from holdfast.processors.snapshots.names import snapshot_tag
from holdfast.processors.snapshots.plan import Wanted
from tests.spark.conftest import Changelog
from tests.spark.verifying import CHECKS, VERIFIER, Verdict, verify


@dataclass
class Store:
    """A store with table versions of every kind.

    ``tags`` has for each tag the kind of its version. Kinds are ``changelog``, ``incremental`` and ``history``.
    """

    changelog: Changelog
    settings: Settings
    tags: dict[str, str]

    def verify(self, version: str = "all") -> Verdict:
        return verify(
            self.settings, self.changelog.bootstrap, self.changelog.topic, f"{self.changelog.processor}.s", version
        )

    @contextmanager
    def rewritten(self, path: Path) -> Iterator[None]:
        """Let the test change a file. Restore the file afterwards."""
        kept = path.with_name(f"{path.name}.kept")
        shutil.copyfile(path, kept)
        yield
        kept.replace(path)

    def verify_with(self, changes: dict[str, Callable[[Any, Any], Any]]) -> Verdict:
        """Return the verdict of ``docs/verify.py`` on a table whose metadata was tampered with.

        ``changes`` maps tags to functions. A function gets the manifest and the link (to the base) in the summary of
        the tagged Iceberg snapshot, and changes them.
        """
        table = load_table(self.settings, self.changelog.processor, "s")
        path = Path(table.metadata_location.removeprefix("file:"))
        metadata = json.loads(path.read_text())
        for tag, change in changes.items():
            number = table.metadata.refs[tag].snapshot_id
            summary = next(each["summary"] for each in metadata["snapshots"] if each["snapshot-id"] == number)
            manifest, link = json.loads(summary["holdfast.manifest"]), json.loads(summary["holdfast.chain"])
            gone = change(manifest, link) == "no link"
            summary |= {"holdfast.manifest": json.dumps(manifest), "holdfast.chain": json.dumps(link)}
            if gone:
                del summary["holdfast.chain"]
        with self.rewritten(path):
            path.write_text(json.dumps(metadata))
            return self.verify()


def ending_at(end: Callable[[int], int], *, linked: bool = True) -> Callable[[Any, Any], None]:
    """Return a function that changes the end offset of partition 1 in a manifest and, if ``linked``, in the link."""

    def change(manifest: Any, link: Any) -> None:
        manifest["partitions"][1]["end"] = end(manifest["partitions"][1]["end"])
        if linked:
            link["vector"]["1"][1] = manifest["partitions"][1]["end"]

    return change


def with_base(change: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    """Return a function that changes the base (the version that it extends) in the link of a version."""
    return lambda manifest, link: link.update(base=change(link["base"]))


def without_link(manifest: Any, link: Any) -> str:
    return "no link"


@pytest.fixture(scope="module")
def store(broker: str, unique: Callable[[str], str], spark: Any, spark_settings: Settings) -> Store:
    changelog, tags = Changelog(broker, unique("strange"), spark), {}

    def take(kind: str, wanted: Wanted = Wanted.AUTO) -> None:
        manifest = changelog.snapshot(changelog.plan(wanted=wanted)).manifest
        assert manifest.source == kind, manifest.why
        tags[snapshot_tag(manifest.snapshot_id)] = kind

    changelog.write(0, [(b"k%d" % n, "v" * n) for n in range(80)])
    changelog.write(1, [("schlüssel".encode(), {"a": [1, 2.5, None]}), (b"gone", 1)])
    changelog.write(1, [(b"aborted", 1)], commit=False)
    take("changelog", Wanted.CHANGELOG)
    changelog.write(1, [(b"gone", None), (b"late", 2)])
    moment = time.time()
    while time.time() < moment + 0.002:
        pass  # record times have milliseconds, so wait until the next record gets a later time
    changelog.write(0, [(b"k%d" % n, None) for n in range(0, 80, 3)])
    changelog.write(0, [(b"k1", "new")])
    take("incremental")
    changelog.write(1, [(b"later", 3)])
    take("incremental")
    made = past.write_past(spark, changelog.processor, "s", "2026-01-01-10:00", moment)
    tags[snapshot_tag(made.manifest.snapshot_id)] = made.manifest.source
    return Store(changelog, spark_settings, tags)


def test_it_uses_two_libraries_and_is_short() -> None:
    text = VERIFIER.read_text()
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert imported - sys.stdlib_module_names == {"confluent_kafka", "pyiceberg"}
    assert len(text.splitlines()) <= 200


def test_its_hash_is_xxhash64() -> None:
    names: dict[str, Any] = {"__name__": "verify"}
    exec(compile(VERIFIER.read_text(), VERIFIER, "exec"), names)
    rng = random.Random(7)
    for size in range(200):
        data, seed = rng.randbytes(size), rng.getrandbits(64)
        assert names["xxh64"](data, seed) == xxh64_intdigest(data, seed)


def test_it_agrees_with_every_version(store: Store) -> None:
    verdict = store.verify()
    assert verdict.code == 0, verdict.output
    assert set(verdict.versions) == set(store.tags), verdict.output
    assert sorted(store.tags.values()) == ["changelog", "history", "incremental", "incremental"]
    for check in CHECKS:
        assert verdict.of(check) == {"agree"}, verdict.output
    one = next(iter(store.tags))
    assert set(store.verify(one).versions) == {one}
    assert store.verify("no-such-tag").code == 1


def test_another_value_in_a_file_is_found(store: Store) -> None:
    table = load_table(store.settings, store.changelog.processor, "s")
    first, *_, newest = [tag for tag, kind in store.tags.items() if kind != "history"]
    scan = table.scan(snapshot_id=table.metadata.refs[first].snapshot_id, row_filter="store_partition = 0")
    (path,) = [Path(task.file.file_path.removeprefix("file:")) for task in scan.plan_files()]
    with store.rewritten(path):
        rows = pq.read_table(path, partitioning=None)
        at = rows["message_key"].to_pylist().index("k10")
        values = rows["value"].to_pylist()
        values[at] = values[at][:-2] + b'w"'
        column = rows.schema.get_field_index("value")
        changed = rows.set_column(column, rows.schema.field(column), pa.array(values, rows.schema.field(column).type))
        pq.write_table(changed, path)
        verdict = store.verify()
    assert verdict.code == 1
    assert verdict.wrong == {tag: {"rows", "changelog"} for tag in store.tags}, "k10 is in all versions"
    assert "1 keys differ, such as b'\\x01\\x00\\x00\\x00\\x03k10n'" in verdict.versions[newest]["changelog"]


@pytest.mark.thorough
def test_what_summaries_say_wrongly_is_found(store: Store) -> None:
    first, second, third = [tag for tag, kind in store.tags.items() if kind != "history"]
    of_another = {"fingerprints": {"0": "0-0000000000000000-0000000000000000", "1": "2-1-3"}}

    # The last transaction of a partition has three offsets: a record, its meta record and its marker.
    verdict = store.verify_with(
        {third: ending_at(lambda end: end - 3, linked=False), second: with_base(lambda base: base | of_another)}
    )
    assert (verdict.code, verdict.wrong) == (1, {third: {"changelog", "chain"}, second: {"chain"}}), verdict.output
    assert "has other fingerprints than it says" in verdict.versions[second]["chain"]

    verdict = store.verify_with({third: ending_at(lambda end: end - 3), second: with_base(lambda base: None)})
    assert verdict.wrong == {third: {"changelog"}, second: {"chain"}}, verdict.output
    assert "1 keys differ" in verdict.versions[third]["changelog"]

    verdict = store.verify_with({third: ending_at(lambda end: 10_000), second: without_link})
    assert verdict.wrong == {third: {"changelog"}, second: {"chain"}}, verdict.output
    assert "ends at 10000, the changelog at" in verdict.versions[third]["changelog"]

    verdict = store.verify_with({third: ending_at(lambda end: 1), first: without_link})
    assert verdict.wrong == {third: {"changelog", "chain"}}, verdict.output
    assert "its vector goes back in partition 1" in verdict.versions[third]["chain"]
    assert verdict.versions[first]["chain"] == "unsure; it has no link", "it is from before there was a chain"
