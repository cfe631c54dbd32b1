"""Fills stores from tables: the stages (steps) of restore and backfill. Implements ``execution.FromTables``.

    restore    check the tables ─► (stopped, new changelogs) load ─► set positions ─► (restored, paused) compare
    backfill   load beside the store ─► (paused) adopt ─► (resumed) remove the loaded topic

Positions are input offsets. To adopt a topic means: the paused workers change their store until it equals the topic.

Invariants:
    - The first record of a load marks the changelog as unfinished. A worker starts no task with such a changelog. The
      records that remove the mark are in one transaction with the input offsets, for all stores and partitions
      together.
    - A repeated load gives the same content, because rows are whole values (not changes) and come from one version of a
      table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import assert_never

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Partition, TopicFacts, TopicSpec
from holdfast.infra.kafka.topics.partitioners import PARTITIONERS
from holdfast.infra.seen_keys import SeenKeys
from holdfast.processors.engine.changelog.format import (
    META_KEY,
    UNFINISHED,
    ChangelogMeta,
    encode_value,
    key_prefix,
    split_key,
)
from holdfast.processors.engine.changelog.names import filling_topic
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.engine.topology import Subtopology, Topology
from holdfast.processors.lifecycle.deploy.keep_or_replace import POLL_S
from holdfast.processors.lifecycle.plans.apply import ApplyFailed, Done, ProgressLog
from holdfast.processors.lifecycle.plans.erased_keys import ErasedKeyThere
from holdfast.processors.lifecycle.plans.facts.warehouse import ROW
from holdfast.processors.lifecycle.plans.stages import (
    AdoptTable,
    CheckTable,
    CompareStores,
    LoadChangelog,
    LoadFile,
    LoadTable,
    RemoveLoaded,
    SetPositions,
    TableStage,
)
from holdfast.processors.lifecycle.rebuild.beside import Rebuilding
from holdfast.processors.lifecycle.rebuild.exchange import Exchange
from holdfast.processors.lifecycle.rebuild.from_files import FileUnfit, load_file
from holdfast.processors.lifecycle.rebuild.table_rows import (
    FLUSH_S,
    Loader,
    Progress,
    TableUnfit,
    checked_rows,
    loader,
    message_key,
    row_value,
    unreadable,
)
from holdfast.processors.lifecycle.rebuild.table_world import TableWorld

#: Maximum seconds to wait until Kafka has removed killed members from the group.
GONE_S = 120.0


class RestoredOther(HoldfastError):
    """After a restore, the content of a worker's store differs from the snapshot. The workers stay paused.

    Fields: ``store``, ``partition``.
    """


class PositionsUnset(HoldfastError):
    """Input offsets cannot be set, because the group has members or offsets are missing. Fields: ``processor``."""


class TableStages:
    """Carries out the stages of a plan that read tables or export files.

    ``rebuilding`` pauses processors, and lets workers change a store until it equals a loaded topic.
    """

    def __init__(self, world: TableWorld, rebuilding: Rebuilding) -> None:
        self._on = world
        self._rebuilding = rebuilding

    def __call__(self, processor: str, stage: TableStage, tell: ProgressLog) -> Done:
        """Carry out one stage of a plan; the result is a text with counts."""
        match stage:
            case CheckTable():
                return self.check(processor, stage, tell)
            case LoadChangelog():
                return self.load_changelog(processor, stage, tell)
            case SetPositions():
                return self.set_positions(processor, stage, tell)
            case CompareStores():
                return self.compare(processor, stage, tell)
            case LoadTable():
                return self.load_table(processor, stage, tell)
            case LoadFile():
                return self.load_file(processor, stage, tell)
            case AdoptTable():
                return self._rebuilding.loudly(processor, lambda: self.adopt(processor, stage, tell))
            case RemoveLoaded():
                self._on.topics.delete(filling_topic(processor, stage.store))
                return Done("the loaded topic is deleted")
            case _:
                assert_never(stage)

    # -- restore -----------------------------------------------------------------------------------------------------

    def check(self, processor: str, stage: CheckTable, tell: ProgressLog) -> Done:
        """Read every row of a snapshot, and compare the fingerprints with the snapshot's manifest.

        Raises:
            ErasedKeyThere: The snapshot is older than the erasure of one of its keys.
            TableDamaged, TableUnfit: The snapshot cannot be used. Nothing was changed, and the apply (execution of a
                plan) ends.
        """
        progress = Progress(tell, f"of {stage.store} read")
        of = (stage.store, stage.table, stage.version)
        erased = self._on.erased(processor)
        written = self._written(processor, stage) if erased.times else None
        what = f"Version {stage.version} of {stage.table}"
        then = f"Name a newer snapshot with `--at`, or erase the key in the table: `holdfast erase {processor} KEY`."
        try:
            for number, expected in stage.fingerprints.items():
                for keys, _ in checked_rows(self._on.tables, of, number, expected):
                    progress.add(len(keys))
                    for key in keys if erased.times else ():
                        erased.check(split_key(key)[0], written, what, then)
        except ApplyFailed:
            raise
        except HoldfastError as failure:
            raise unreadable(failure) from failure
        return Done(f"{progress.rows:,} keys of {stage.store} match its manifest", progress.rows)

    def _written(self, processor: str, stage: CheckTable) -> datetime | None:
        """When the table's version was written; None if the catalog no longer has it."""
        versions = self._on.tables.store_table(processor, stage.store).versions
        found = next((each for each in versions if each.version == stage.version), None)
        return None if found is None else datetime.fromtimestamp(found.written_at, UTC)

    def load_changelog(self, processor: str, stage: LoadChangelog, tell: ProgressLog) -> Done:
        """Write a snapshot to a changelog that is marked as unfinished; ``set_positions`` removes the mark.

        Raises:
            TableDamaged: The table differs from its manifest.
        """
        topology = self._on.topology(processor)
        topic = topology.changelog_of(stage.store)
        assert topic is not None
        inputs = topology.inputs_of(stage.store)
        begun = dict.fromkeys(inputs, UNFINISHED)
        unfinished = ChangelogMeta(begun, 0, topology.code_version, processor=processor).encode()
        progress = Progress(tell, f"of {stage.store} written")
        of = (stage.store, stage.table, stage.version)
        with loader(self._on.cluster(processor), processor) as load:
            for number in stage.fingerprints:
                load.send(topic.name, number, ([META_KEY], [unfinished]))
            for number, expected in stage.fingerprints.items():
                for rows in checked_rows(self._on.tables, of, number, expected):
                    load.send(topic.name, number, rows)
                    progress.add(len(rows[0]))
        return Done(f"{progress.rows:,} keys written to {topic.name}; they match the manifest", progress.rows)

    def set_positions(self, processor: str, stage: SetPositions, tell: ProgressLog) -> Done:
        """In one transaction, set input offsets and remove the "unfinished" marks of the changelogs.

        Raises:
            PositionsUnset: The group has members, or an offset that the plan keeps is not committed.
        """
        self._wait_until_empty(processor, tell)
        topology = self._on.topology(processor)
        subs = [sub for sub in topology.subtopologies if set(sub.stores) & set(stage.stores)]
        facts = self._on.topics.describe([name for sub in subs for name in sub.inputs])
        ids = {name: each.topic_id for name, each in facts.items()}
        positions = stage.positions or self._committed(processor, facts)
        offsets: dict[Partition, int] = {}
        cluster = self._on.cluster(processor)
        with loader(cluster, processor) as load:
            load.producer.begin()
            for sub in subs:
                for number in range(max(facts[name].partitions for name in sub.inputs if name in facts)):
                    there = {topic: positions.get(topic, {}).get(number) for topic in sub.inputs}
                    inputs = {topic: at for topic, at in there.items() if at is not None}
                    self._make_whole(load, topology, (sub, number), stage.stores, inputs, ids)
                    offsets |= {Partition(topic, number): at for topic, at in inputs.items()}
            load.producer.flush(FLUSH_S)
            load.producer.send_offsets(offsets, cluster.outside_metadata(processor))
            load.producer.commit()
        return Done(f"{len(offsets)} input offset(s) of {processor} are set to those of its state", len(offsets))

    def _make_whole(  # tidy: allow-wide because all parameters describe one record
        self,
        load: Loader,
        topology: Topology,
        task: tuple[Subtopology, int],
        stores: Sequence[str],
        inputs: Mapping[str, int],
        ids: Mapping[str, str],
    ) -> None:
        sub, number = task
        sources = {topic: ids[topic] for topic in inputs}
        meta = ChangelogMeta(dict(inputs), 0, topology.code_version, sources, processor=topology.processor).encode()
        for store in (store for store in sub.stores if store in stores):
            topic = topology.changelog_of(store)
            assert topic is not None
            load.producer.produce(topic.name, meta, META_KEY, partition=number)

    def compare(self, processor: str, stage: CompareStores, tell: ProgressLog) -> Done:
        """Compare the fingerprints of the owners' stores with those in the snapshots' manifests.

        Raises:
            RestoredOther: The fingerprint of a partition differs, or no owner reported the partition.
        """
        tell("the owners compute the fingerprints of their stores")
        held = self._on.held(processor, tuple(stage.fingerprints))
        keys = 0
        for store, expected in stage.fingerprints.items():
            for number, text in expected.items():
                seen = held.get(store, {}).get(number, Fingerprint())
                keys += seen.count
                if seen.hex != text:
                    raise RestoredOther(
                        f"{processor} IS PAUSED and reads no input: partition {number} of {store} has "
                        f"fingerprint {seen.hex} after its restore; the snapshot's manifest has {text}.",
                        action="Run `holdfast apply resume N` to compare again. If they still differ, run "
                        "`holdfast apply abandon N --reason WHY` and restore another snapshot.",
                        store=store,
                        partition=number,
                        seen=seen.hex,
                        expected=text,
                    )
        return Done(f"{keys:,} keys of {', '.join(stage.fingerprints)} match their manifests", keys)

    def _wait_until_empty(self, processor: str, tell: ProgressLog) -> None:
        deadline = self._on.clock.monotonic() + GONE_S
        while members := self._on.topics.members(processor):
            if self._on.clock.monotonic() > deadline:
                raise PositionsUnset(
                    f"Group {processor} still has {members} member(s) after {GONE_S:.0f} s; offsets can be set only "
                    "while it has none.",
                    action="Stop the workers that run elsewhere, then run `holdfast apply resume N`.",
                    processor=processor,
                    members=members,
                )
            tell(f"group {processor} still has {members} member(s)")
            self._on.clock.sleep(POLL_S)

    def _committed(self, processor: str, inputs: Mapping[str, TopicFacts]) -> dict[str, dict[int, int]]:
        """The group's committed offset of every partition of these topics.

        Raises PositionsUnset if an offset is missing, because a committed offset can expire after the plan was made.
        """
        found: dict[str, dict[int, int]] = {}
        for place, offset in self._on.topics.committed_offsets(processor).items():
            found.setdefault(place.topic, {})[place.number] = offset
        for topic, number in ((name, number) for name, each in inputs.items() for number in range(each.partitions)):
            if number not in found.get(topic, {}):
                raise PositionsUnset(
                    f"Group {processor} has no committed offset of {topic}[{number}], so the restore can't keep its "
                    "position.",
                    action="Run `holdfast apply abandon N --reason WHY`, then restore again with `--input snapshot`.",
                    processor=processor,
                    topic=topic,
                    partition=number,
                )
        return found

    # -- backfill ----------------------------------------------------------------------------------------------------

    def load_table(self, processor: str, stage: LoadTable, tell: ProgressLog) -> Done:
        """Write the rows of a table to a temporary topic. The store's changelog stays unchanged.

        Raises:
            TableUnfit, ErasedKeyThere: The rows cannot be the store's content, or the table's version is older than
                the erasure of one of its keys. The topic is deleted; nothing else was changed.
        """
        topic = self._make_topic(processor, stage.store)
        count = self._on.topics.describe([topic])[topic].partitions
        place = PARTITIONERS[stage.partitioner]
        progress, keyless = Progress(tell, "written"), 0
        erased, written = self._on.erased(processor), datetime.fromtimestamp(stage.event_ms / 1000, UTC)
        named = ChangelogMeta({}, 0, "", processor=processor).encode()
        columns = tuple(dict.fromkeys((stage.key, *stage.columns)))
        try:
            with loader(self._on.cluster(processor), processor) as load, SeenKeys() as seen:
                load.send(topic, 0, ([META_KEY], [named]))
                for batch in self._on.tables.other_rows(stage.table, stage.version, columns):
                    parts: dict[int, tuple[list[bytes], list[bytes]]] = {}
                    for row in batch:
                        key = message_key(row[stage.key])
                        if key is None:
                            keyless += 1
                            continue
                        if not seen.add(key):
                            raise _twice(key, stage)
                        erased.check(key, written, f"Table {stage.table}", "Delete the key's rows from the table.")
                        keys, values = parts.setdefault(place(key, count), ([], []))
                        keys.append(key_prefix(key) + ROW.encode())
                        shown = row_value({name: row[name] for name in stage.columns})
                        values.append(encode_value(shown, stage.event_ms, where=f" for key {key!r}"))
                    for number, rows in parts.items():
                        load.send(topic, number, rows)
                    progress.add(len(batch))
        except (TableUnfit, ErasedKeyThere):
            self._on.topics.delete(topic)
            raise
        left = f"; {keyless:,} rows without {stage.key} are left out" if keyless else ""
        return Done(f"{len(seen):,} keys of {stage.table} written to {topic}{left}", len(seen))

    def load_file(self, processor: str, stage: LoadFile, tell: ProgressLog) -> Done:
        """Write the entries of a file to a temporary topic. The store's changelog stays unchanged.

        Raises:
            FileUnfit: The entries cannot be put back. The topic is deleted; nothing else was changed.
        """
        topic = self._make_topic(processor, stage.store)
        try:
            return load_file(self._on, processor, stage, topic, tell)
        except FileUnfit:
            self._on.topics.delete(topic)
            raise

    def adopt(self, processor: str, stage: AdoptTable, tell: ProgressLog) -> Done:
        """Let the paused workers change their store until it equals the loaded topic.

        With ``keep_others``, message keys that are not in the topic stay unchanged.
        """
        store, keep = stage.store, stage.keep_others
        topology = self._on.topology(processor)
        inputs = {name for sub in topology.subtopologies if store in sub.stores for name in sub.inputs}
        topic = filling_topic(processor, store)

        made = Exchange(processor, keep=keep, export=stage.export, once=self._rebuilding.once())

        def act() -> None:
            self._rebuilding.stand_still(processor, tell)
            self._rebuilding.take_over(processor, (store, inputs), topic, made, tell)

        other = "the file in its keys" if keep else "the table"
        return self._rebuilding.adopt_by(act, made, (store, other), tell)

    def _make_topic(self, processor: str, store: str) -> str:
        changelog = self._on.topology(processor).changelog_of(store)
        assert changelog is not None
        like = self._on.topics.describe([changelog.name])[changelog.name]
        topic = filling_topic(processor, store)
        self._on.topics.create(TopicSpec(topic, like.partitions, like.replication, changelog.config))
        return topic


def _twice(key: bytes, stage: LoadTable) -> TableUnfit:
    return TableUnfit(
        f"{stage.table} has two rows with {stage.key} {key.decode(errors='replace')!r}; a key must have one row.",
        action=f"Name a key column with unique values, or remove duplicates of {stage.key}. Nothing was changed.",
        table=stage.table,
        key=key.decode(errors="replace"),
    )
