"""Verifies the published versions of a store's Iceberg table. Uses only pyiceberg and confluent-kafka, not Holdfast.

    pip install 'pyiceberg[sql-sqlite,pyarrow]' confluent-kafka
    python verify.py --bootstrap localhost:9092 --changelog fleet-aircraft-changelog --table fleet.aircraft \
        --catalog sqlite:////srv/holdfast/catalog.db --warehouse file:///srv/holdfast/warehouse --version all

A version is an Iceberg snapshot that the branch main or a tag names (``--version``: a tag, a number or ``all``). Its
manifest is JSON in the snapshot's summary, with fingerprints and a vector: one changelog offset for each partition.
Checks: ``rows``: the table has these fingerprints. ``changelog``: the newest record of each key before the vector is
equal to the key's row. ``chain``: the version's link to its base fits both manifests. Exit code 1: a check failed.

A fingerprint is the number of pairs (key, value), the xor and the sum (modulo 2^64) of their hashes. A pair's hash is
Spark's ``xxhash64(key, value)``. A row is ``unsure`` if compaction may have removed its record.
"""

import argparse
import json
import struct
import sys
import time
from collections import defaultdict
from functools import lru_cache, reduce
from operator import xor

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from pyiceberg.catalog.sql import SqlCatalog

P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5, MASK = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5, (1 << 64) - 1
#: The key of records that are no state; seconds without an answer; the part of the broker's times that is relied on.
META, PATIENCE_S, SAFE = b"\x00meta", 60, 0.75
hash_of = lru_cache(1 << 20)(lambda key, value: xxh64(value, xxh64(key, 42)))


def turned(word, by):
    """Returns a 64-bit word, rotated to the left."""
    return (word << by | word >> 64 - by) & MASK


def xxh64(data, seed):
    """Returns the xxHash64 of bytes."""
    size, whole = len(data), seed + P5
    if size >= 32:
        lanes = [seed + P1 + P2 & MASK, seed + P2 & MASK, seed, seed - P1 & MASK]
        for words in struct.iter_unpack("<4Q", data[: size & ~31]):
            lanes = [turned(lane + word * P2 & MASK, 31) * P1 & MASK for lane, word in zip(lanes, words, strict=True)]
        whole = sum(map(turned, lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            whole = (whole ^ turned(lane * P2 & MASK, 31) * P1 & MASK) * P1 + P4 & MASK
    whole = whole + size & MASK
    for (word,) in struct.iter_unpack("<Q", data[size & ~31 : size & ~7]):
        whole = turned(whole ^ turned(word * P2 & MASK, 31) * P1 & MASK, 27) * P1 + P4 & MASK
    if size & 4:
        whole = turned(whole ^ struct.unpack_from("<I", data, size & ~7)[0] * P1 & MASK, 23) * P2 + P3 & MASK
    for byte in data[size & ~3 :]:
        whole = turned(whole ^ byte * P5 & MASK, 11) * P1 & MASK
    whole = (whole ^ whole >> 33) * P2 & MASK
    whole = (whole ^ whole >> 29) * P3 & MASK
    return whole ^ whole >> 32


def print_of(pairs):
    """Returns the fingerprint of a list of hashes."""
    return f"{len(pairs)}-{reduce(xor, pairs, 0):016x}-{sum(pairs) & MASK:016x}"


class Version:
    """A version of the table, its summary, and what each check finds: ``wrong``, or else ``unsure``."""

    def __init__(self, table, snapshot, tags):
        self.table, self.number, self.names, told = table, snapshot.snapshot_id, sorted(tags), snapshot.summary
        self.manifest, self.link = json.loads(told["holdfast.manifest"]), json.loads(told["holdfast.chain"] or "{}")
        parts = {str(part["partition"]): part for part in self.manifest["partitions"]}
        self.prints = {number: part["fingerprint"] for number, part in parts.items()}
        self.vector = {number: [part["topic_id"], part["end"]] for number, part in parts.items()}
        self.wrong, self.unsure = defaultdict(list), defaultdict(list)

    def check(self, changelog):
        """Compares the rows that pyiceberg reads (deletion vectors are applied) with the manifest and the changelog."""
        found, names = defaultdict(list, {number: [] for number in self.prints}), ("store_partition", "key", "value")
        rows = self.table.scan(snapshot_id=self.number, selected_fields=names).to_arrow()
        for partition, key, value in zip(*(rows[name].to_pylist() for name in names), strict=True):
            found[str(partition)].append((key, hash_of(key, value)))
        for number, pairs in found.items():
            held, told = print_of([pair for _, pair in pairs]), self.prints.get(number, "nothing")
            if held != told:
                self.wrong["rows"].append(f"partition {number} has {held}, its manifest says {told}")
            if number in self.vector:
                changelog.check(self, number, dict(pairs))


def published(table):
    """Returns the published versions, oldest first: all versions of the branch main, and all versions with a tag."""
    known, names = {each.snapshot_id: each for each in table.metadata.snapshots}, defaultdict(list)
    for name, ref in table.metadata.refs.items():
        names[ref.snapshot_id if ref.snapshot_ref_type == "tag" else None].append(name)
    at = table.metadata.current_snapshot_id
    while at in known:
        names[at], at = names[at], known[at].parent_snapshot_id
    found = sorted((known[at] for at in names if at in known), key=lambda each: each.sequence_number)
    return [Version(table, each, names[each.snapshot_id]) for each in found if each.summary["holdfast.manifest"]]


def check_chain(versions):
    """Compares each version's link with manifest and base, and checks that no vector goes back in one changelog."""
    known, newest, linked = {each.manifest["snapshot_id"]: each for each in versions}, {}, False
    for each in versions:
        wrong, link, id_of_base = each.wrong["chain"], each.link, each.manifest["base"]
        base, linked = known.get(id_of_base), linked or bool(link)
        if not link:
            (wrong if linked else each.unsure["chain"]).append("it has no link")
        elif [link["fingerprints"], link["vector"]] != [each.prints, each.vector]:
            wrong.append("its fingerprints or its vector are not those of its manifest")
        elif (link["base"] or {"id": None})["id"] != id_of_base:
            wrong.append(f"its base is not {id_of_base}, as its manifest says")
        elif base and link["base"]["fingerprints"] != base.prints:
            wrong.append(f"its base {id_of_base} has other fingerprints than it says")
        elif id_of_base and not base:
            each.unsure["chain"].append(f"its base {id_of_base} has expired")
        for number, (topic_id, end) in each.vector.items():
            made = each.manifest["source"] == "history"
            before = dict([base.vector[number]] if base else []) if made else newest.setdefault(number, {})
            if end < before.get(topic_id, 0):
                wrong.append(f"its vector goes back in partition {number}, from {before[topic_id]} to {end}")
            before[topic_id] = end


class Changelog:
    """A topic's records. Compaction may have removed tombstones before ``deleted``, others before ``replaced``."""

    def __init__(self, topic, client):
        self.topic, admin, asked = topic, AdminClient(client), ConfigResource(ConfigResource.Type.TOPIC, topic)
        self.id = str(admin.describe_topics(TopicCollection([topic]))[topic].result(PATIENCE_S).topic_id)
        told = {name: each.value for name, each in admin.describe_configs([asked])[asked].result(PATIENCE_S).items()}
        ages = (int(told[name]) / 1000 * SAFE for name in ("min.compaction.lag.ms", "delete.retention.ms"))
        self.replaced, self.deleted = (time.time() - age if "compact" in told["cleanup.policy"] else 0 for age in ages)
        reading = {"group.id": "verify", "enable.auto.commit": False, "isolation.level": "read_committed"}
        self.consumer = Consumer({**client, **reading, "enable.partition.eof": True})
        self.records = lru_cache(self.read)

    def read(self, number):
        """Returns start and end offset of a partition, and its records: offset, key, hash (None: deleted), seconds."""
        place, found = TopicPartition(self.topic, int(number), OFFSET_BEGINNING), []
        start, _ = self.consumer.get_watermark_offsets(place, PATIENCE_S)
        self.consumer.assign([place])
        while (got := self.consumer.poll(PATIENCE_S)) is not None and not got.error():
            if got.key() not in (None, META):
                pair = None if got.value() is None else hash_of(got.key(), got.value())
                found.append((got.offset(), got.key(), pair, got.timestamp()[1] / 1000))
        if got is None or got.error().code() != KafkaError._PARTITION_EOF:
            sys.exit(f"{self.topic}, partition {number}, can't be read: {'no answer' if got is None else got.error()}")
        return start, got.offset(), found

    def check(self, version, number, rows):
        """Compares the rows of a partition with the newest record of each key before the version's vector."""
        (topic_id, end), wrong, unsure = version.vector[number], version.wrong["changelog"], version.unsure["changelog"]
        if topic_id != self.id:
            return unsure.append(f"partition {number} is of the changelog {topic_id}, which is gone")
        start, newest, log = self.records(number)
        if end > newest:
            wrong.append(f"partition {number} ends at {end}, the changelog at {newest}")
        state = {key: pair for offset, key, pair, _ in log if offset < end}
        later = {key: at for offset, key, _, at in reversed(log) if offset >= end}
        apart = {key for key in rows.keys() | state.keys() if rows.get(key) != state.get(key)}
        old = start or version.manifest["taken_at"] < self.deleted
        lost = {key for key in apart - state.keys() if old or later.get(key, self.replaced) < self.replaced}
        if lost:
            unsure.append(f"partition {number}: the records of {len(lost)} of {len(rows)} rows may be compacted")
        if apart - lost:
            wrong.append(f"partition {number}: {len(apart - lost)} keys differ, such as {min(apart - lost)!r}")


def main():
    """Verifies the versions that the command line selects. Returns the exit code: 1 if a check found a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bootstrap", "changelog", "table", "catalog", "warehouse"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--version", default="all")
    for name in ("kafka", "iceberg"):
        parser.add_argument(f"--{name}", type=json.loads, default={}, help="more properties, as JSON")
    given = parser.parse_args()
    catalog = SqlCatalog("holdfast", uri=given.catalog, warehouse=given.warehouse, **given.iceberg)
    versions = published(catalog.load_table(given.table))
    check_chain(versions)
    chosen = [each for each in versions if given.version in ("all", str(each.number), *each.names)]
    log = Changelog(given.changelog, {"bootstrap.servers": given.bootstrap, **given.kafka})
    for each in chosen:
        each.check(log)
        print(each.number, *each.names, end="")
        for name in ("rows", "changelog", "chain"):
            verdict = "DIFFER" if each.wrong[name] else "unsure" if each.unsure[name] else "agree"
            print(" |", name, "; ".join([verdict, *each.wrong[name], *each.unsure[name]]), end="", flush=True)
        print()
    return 0 if chosen and not any(any(each.wrong.values()) for each in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
