"""The comparisons at the end of the demo. Each counts its mismatches; the demo passes when all counts are 0.

- The three copies of each store (RocksDB, changelog, warehouse table) by fingerprint, while no record is processed.
- The contents of each table with Spark's own result from the file of flights.
- The outputs with their sequence numbers, and the number of dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.infra.kafka.reader import read_range
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.sample_data.flights import FLIGHTS, FLIGHTS_WITHOUT_AIRCRAFT
from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.catalog import read_table
from holdfast.orchestration.demo.sequences import SequenceCheck, check_sequences, committed_count, committed_updates
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.serving.client import ProcessorClient
from holdfast.processors.engine.state.checkpoint_reader import fingerprint_checkpoint
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of
from holdfast.processors.registration import ProcessorDefinition

if TYPE_CHECKING:
    from holdfast.assets.spark.flights import FlightsComparison

#: Processor -> number of dead letters that it must have produced.
DEAD_LETTERS = {"fleet": FLIGHTS_WITHOUT_AIRCRAFT, "routes": 0}


@dataclass(frozen=True, slots=True)
class Copies:
    """Fingerprints of the three copies of one store."""

    store: Fingerprint
    changelog: Fingerprint
    warehouse: Fingerprint

    @property
    def mismatches(self) -> int:
        """Number of copies that differ from the store, 0 to 2."""
        return (self.changelog != self.store) + (self.warehouse != self.store)


@dataclass(frozen=True, slots=True)
class ProcessorVerdict:
    """The comparisons of one processor."""

    processor: str
    keys: int
    differing: int
    #: Up to five keys that differ.
    examples: tuple[str, ...]
    copies: Copies
    outputs: SequenceCheck
    dead_letters: int
    dead_letters_expected: int

    @property
    def mismatches(self) -> int:
        """Mismatches of all comparisons of this processor."""
        letters = abs(self.dead_letters - self.dead_letters_expected)
        return self.differing + self.copies.mismatches + self.outputs.mismatches + letters

    def sentences(self) -> list[str]:
        """One sentence for each comparison with a mismatch."""
        found = []
        if self.differing:
            shown = ", ".join(self.examples)
            found.append(f"{self.processor}: {self.differing} keys differ from Spark's result, such as {shown}")
        if self.copies.mismatches:
            copies = self.copies
            found.append(
                f"{self.processor}: store {copies.store.hex}, changelog {copies.changelog.hex}, "
                f"warehouse {copies.warehouse.hex}"
            )
        if self.outputs.mismatches:
            found.append(f"{self.processor}: outputs {self.outputs}")
        if self.dead_letters != self.dead_letters_expected:
            found.append(
                f"{self.processor}: {self.dead_letters:,} dead letters, expected {self.dead_letters_expected:,}"
            )
        return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparisons of all processors."""

    processors: tuple[ProcessorVerdict, ...] = field(default_factory=tuple)

    @property
    def mismatches(self) -> int:
        """Mismatches of all processors; 0 when the demo passes."""
        return sum(one.mismatches for one in self.processors)

    @property
    def keys(self) -> int:
        """Number of keys compared."""
        return sum(one.keys for one in self.processors)

    @property
    def outputs(self) -> int:
        """Number of output records compared."""
        return sum(one.outputs.records for one in self.processors)

    @property
    def sentences(self) -> list[str]:
        """One sentence for each comparison with a mismatch."""
        return [sentence for one in self.processors for sentence in one.sentences()]

    def figures(self) -> dict[str, str]:
        """Names and values for the printed table."""
        shown: dict[str, str] = {}
        for one in self.processors:
            shown[f"{one.processor}: keys equal to Spark's result"] = f"{one.keys - one.differing:,}"
            shown[f"{one.processor}: store = changelog = warehouse"] = one.copies.store.hex
            shown[f"{one.processor}: committed outputs"] = f"{one.outputs.records:,}"
            shown[f"{one.processor}: lost, doubled outputs"] = f"{one.outputs.lost}, {one.outputs.doubled}"
            shown[f"{one.processor}: dead letters"] = f"{one.dead_letters:,}"
        shown["flights"] = f"{FLIGHTS:,}"
        shown["mismatches"] = f"{self.mismatches}"
        return shown


def verify(
    settings: Settings,
    topics: Topics,
    definitions: Sequence[ProcessorDefinition],
    compared: Mapping[str, FlightsComparison],
    updates: Mapping[str, Mapping[str, int]],
) -> Verdict:
    """Compare stores, changelogs, tables, outputs and dead letters of all processors.

    Args:
        settings: Locate the warehouse and the checkpoints.
        topics: The cluster.
        definitions: The processors; they must be idle, with no lag.
        compared: Processor -> the comparison of its table with Spark's result.
        updates: Processor -> key -> number of updates that its output topic must hold.
    """
    return Verdict(
        tuple(_verify_one(settings, topics, one, compared[one.name], updates[one.name]) for one in definitions)
    )


def _verify_one(
    settings: Settings,
    topics: Topics,
    definition: ProcessorDefinition,
    compared: FlightsComparison,
    updates: Mapping[str, int],
) -> ProcessorVerdict:
    topology = definition.topology
    store, changelog = topology.changelogs[0].store, topology.changelogs[0].topic.name
    table = read_table(settings.paths, definition.name, store)
    columns = {name: table.column(name).to_pylist() for name in ("key", "value")}
    manifest = ProcessorClient(definition.name, "0", settings.paths).checkpoint()
    outputs = check_sequences(committed_updates(topics, topology.outputs[0].name), updates)
    return ProcessorVerdict(
        processor=definition.name,
        keys=compared.keys,
        differing=compared.mismatches,
        examples=tuple(str(row["message_key"]) for row in compared.examples[:5]),
        copies=Copies(
            store=store_fingerprint(manifest, store),
            changelog=changelog_fingerprint(topics, changelog),
            warehouse=fingerprint_of(zip(columns["key"], columns["value"], strict=True)),
        ),
        outputs=outputs,
        dead_letters=0 if topology.dead_letter is None else committed_count(topics, topology.dead_letter.name),
        dead_letters_expected=DEAD_LETTERS.get(definition.name, 0),
    )


def store_fingerprint(manifest: Mapping[str, Any], store: str) -> Fingerprint:
    """The fingerprint of a store over all tasks in a checkpoint's manifest."""
    found = Fingerprint()
    for task in manifest["tasks"]:
        found += fingerprint_checkpoint(Path(task["path"]), store)
    return found


def changelog_fingerprint(topics: Topics, topic: str) -> Fingerprint:
    """The fingerprint of a changelog: the newest committed value of each key, without deleted keys."""
    found = Fingerprint()
    starts = topics.start_offsets(topic)
    for partition, end in topics.settled_end_offsets(topic).items():
        newest: dict[bytes, bytes | None] = {}
        for record in read_range(topics.bootstrap, topic, partition, starts[partition], end):
            if record.key is not None and record.key != META_KEY:
                newest[record.key] = record.value
        found += fingerprint_of((key, value) for key, value in newest.items() if value is not None)
    return found
