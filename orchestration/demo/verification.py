"""The comparisons at the end of the demo. Each comparison counts mismatches; the demo passes if all counts are 0.

- An audit compares the three copies of each store (RocksDB, changelog, warehouse table), while no record is processed.
- Each table is compared with the result that Spark computes from the file of flights.
- Sequence numbers in the outputs show lost and duplicate records. A window's number is found by the window's start.
- The number of dead letters is compared with the expected number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.infra.kafka.records import Record
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.sample_data.flights import is_disrupted, is_long_delay, read_flights, route_of
from holdfast.infra.sample_data.reference import read_planes
from holdfast.infra.settings import Settings
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.demo.closed_windows import (
    Departures,
    closed_hours,
    closed_hours_of_carriers,
    closed_rotations,
    departure,
    numbered,
)
from holdfast.orchestration.demo.lost_or_doubled import (
    SequenceCheck,
    check_sequences,
    committed,
    starts_of,
    updates_of,
    write_lines,
)
from holdfast.orchestration.verbs import open_verbs
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.audits.comparison import Side
from holdfast.processors.audits.stores import StoreAudit
from holdfast.processors.definitions import RESULTS, models
from holdfast.processors.engine.state.fingerprint import Fingerprint

if TYPE_CHECKING:
    from holdfast.assets.spark.flights import FlightsComparison

#: Maximum seconds that a processor without lag may take to send its last due windows. It needs time, because one commit
#: closes at most 5,000 windows. Besides, after a restart, stream time after a `group_by` does not advance until all
#: upstream tasks have sent a watermark.
CLOSED_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Outputs:
    """The counts from reading a processor's output: lost and duplicate sequence numbers, and dead letters."""

    sequences: SequenceCheck
    dead_letters: int
    #: File with the windows that the processor sent, as JSON lines; None for a processor without windows.
    closed: Path | None = None


@dataclass(frozen=True, slots=True)
class ProcessorVerdict:
    """The result of all comparisons for one processor."""

    processor: str
    keys: int
    differing: int
    #: Up to five keys whose values differ from Spark's result.
    examples: tuple[str, ...]
    #: Fingerprints (hashes of all keys and values) of the three copies of the processor's store.
    copies: Mapping[Side, Fingerprint]
    outputs: SequenceCheck
    dead_letters: int
    dead_letters_expected: int
    #: The word for the compared items in texts: ``keys`` or ``windows``.
    things: str = "keys"

    @property
    def mismatches(self) -> int:
        """The number of mismatches in all comparisons of this processor."""
        letters = abs(self.dead_letters - self.dead_letters_expected)
        return self.differing + len(set(self.copies.values())) - 1 + self.outputs.mismatches + letters

    def sentences(self) -> list[str]:
        """One sentence for each comparison that found a mismatch."""
        found = []
        if self.differing:
            shown = ", ".join(self.examples)
            found.append(
                f"{self.processor}: {self.differing} {self.things} differ from Spark's result, such as {shown}"
            )
        if len(set(self.copies.values())) > 1:
            copies = ", ".join(f"{side.value} {whole.hex}" for side, whole in self.copies.items())
            found.append(f"{self.processor}: {copies}")
        if self.outputs.mismatches:
            found.append(f"{self.processor}: outputs {self.outputs}")
        if self.dead_letters != self.dead_letters_expected:
            found.append(
                f"{self.processor}: {self.dead_letters:,} dead letters, expected {self.dead_letters_expected:,}"
            )
        return found


def figures_of(verdicts: Iterable[ProcessorVerdict]) -> dict[str, str]:
    """Name -> value, for the table of figures that the demo prints."""
    shown: dict[str, str] = {}
    for one in verdicts:
        shown[f"{one.processor}: {one.things} equal to Spark's result"] = f"{one.keys - one.differing:,}"
        shown[f"{one.processor}: store = changelog = warehouse"] = one.copies[Side.STORE].hex
        shown[f"{one.processor}: committed outputs"] = f"{one.outputs.records:,}"
        shown[f"{one.processor}: lost, doubled outputs"] = f"{one.outputs.lost}, {one.outputs.doubled}"
        shown[f"{one.processor}: dead letters"] = f"{one.dead_letters:,}"
    return shown


def compare_with_spark(
    settings: Settings, months: int, published: Callable[[str], Outputs]
) -> Mapping[str, FlightsComparison]:
    """Compute all results with Spark from the file of flights, and compare them with tables and sent windows.

    The flights are those of the first ``months`` of the year. After the computation, ``published`` is called with the
    name of each processor; ``published`` waits for the processor's table and returns the processor's output.

    Raises:
        holdfast.infra.spark.session.SparkFailed: The tables or the file could not be read.
    """
    # The modules with Spark are imported late, so that a machine without a JVM can import `demo.verification`.
    from holdfast.assets.spark.flights import verify_flights
    from holdfast.infra.spark.session import spark_session, stop_spark
    from holdfast.processors.snapshots.names import table_name

    session = spark_session(settings, app_name="holdfast-demo")
    try:
        return verify_flights(session, table_name, lambda processor: published(processor).closed, months)
    finally:
        stop_spark(session)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected content of the output topics, counted directly from the file of flights, without the engine."""

    #: Processor -> key -> expected number of updates.
    updates: Mapping[str, Mapping[str, int]]
    #: Processor with windows -> key -> the starts of its closed windows.
    closed: Mapping[str, Mapping[str, Sequence[int]]]
    #: Processor -> expected number of dead letters; 0 for a processor that is not in the mapping.
    dead_letters: Mapping[str, int]


def outputs_expected(months: int, partitions: int) -> Expected:
    """The expected outputs for the flights of the first ``months`` of the year.

    ``partitions`` is the number of partitions of each topic.
    """
    updates: dict[str, Counter[str]] = {name: Counter() for name in ("fleet", "routes", "weather", "models")}
    aircraft, origins, airlines = Departures(), Departures(), Departures()
    model_of = {plane["tailnum"]: plane["model"] for plane in read_planes()}
    without_aircraft = 0
    for flight in read_flights(months=months):
        tail, left_at = flight["tailnum"], departure(flight)
        updates["routes"][route_of(flight)] += 1
        origins.add(flight["origin"], left_at)
        airlines.add(flight["carrier"], left_at)
        if tail is not None:
            updates["fleet"][tail] += 1
            aircraft.add(tail, left_at)
        else:
            without_aircraft += 1
        if is_disrupted(flight):
            updates["weather"][f"{flight['origin']} {flight['time_hour']}"] += 1
        if is_long_delay(flight):
            updates["models"][model_of.get(tail, models.UNKNOWN)] += 1
    closed = {
        "rotations": closed_rotations(aircraft, partitions),
        "delays": closed_hours(origins, partitions),
        "carriers": closed_hours_of_carriers(airlines),
    }
    counted = {name: {key: len(starts) for key, starts in keys.items()} for name, keys in closed.items()}
    return Expected({**updates, **counted}, closed, {"fleet": without_aircraft})


def await_windows(topics: Topics, definitions: Sequence[ProcessorDefinition], expected: Expected) -> None:
    """Wait until these processors have sent all due windows, at most ``CLOSED_WITHIN_S`` for each processor.

    The wait is needed because the table of ``carriers`` must have its newest windows before it is compared.
    """
    for one in definitions:
        if one.name in expected.closed:
            sent(topics, one.topology.outputs[0].name, sum(expected.updates[one.name].values()))


def read_outputs(
    topics: Topics, definitions: Sequence[ProcessorDefinition], expected: Expected, folder: Path
) -> Mapping[str, Outputs]:
    """Read and check the outputs: processor -> counts of its output. The processors must have no lag.

    The sent windows of each processor are written to a file in ``folder``.
    """
    found = {}
    for one in definitions:
        updates, starts, closed = expected.updates[one.name], expected.closed.get(one.name), None
        topic = one.topology.outputs[0].name
        if starts is None:
            sequences = check_sequences(updates_of(committed(topics, topic)), updates)
        else:
            records = sent(topics, topic, sum(updates.values()))
            sequences = check_sequences(numbered(starts_of(records), starts), updates)
            closed = write_lines(records, folder / f"{one.name}.jsonl")
        letters = one.topology.dead_letter
        dead = 0 if letters is None else sum(1 for _ in committed(topics, letters.name))
        found[one.name] = Outputs(sequences, dead, closed)
    return found


def sent(topics: Topics, topic: str, count: int) -> list[Record]:
    """Wait until a topic has ``count`` committed records, at most ``CLOSED_WITHIN_S``; returns all its records."""
    records: list[Record] = []
    read_to = topics.start_offsets(topic)

    def enough() -> bool:
        ends = topics.settled_end_offsets(topic)
        records.extend(committed(topics, topic, read_to, ends))
        read_to.update(ends)
        return len(records) >= count

    wait_until(enough, CLOSED_WITHIN_S)
    return records


def copies_checked(checked: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[Side, Fingerprint]]:
    """Processor -> fingerprints (hashes) of its store's three copies, measured by the asset check ``copies_equal``.

    ``checked`` maps a processor to the fingerprints in the check's metadata. A processor is left out if the check could
    not compare all three copies. This happens if a newer checkpoint replaced the checkpoint at the table's offsets.
    """
    found: dict[str, Mapping[Side, Fingerprint]] = {}
    for processor, told in checked.items():
        texts = {side: told.get(f"{side.value}_fingerprint") for side in Side}
        if None not in texts.values():
            found[processor] = {side: Fingerprint.of_hex(text or "") for side, text in texts.items()}
    return found


def audit_copies(
    settings: Settings, definitions: Sequence[ProcessorDefinition]
) -> dict[str, Mapping[Side, Fingerprint]]:
    """Audit the result store of each processor; returns processor -> fingerprints (hashes) of the store's three copies.

    The processors must have no lag.
    """
    found: dict[str, Mapping[Side, Fingerprint]] = {}
    with open_verbs(settings) as verbs:
        for one in definitions:
            (audit,) = verbs.audit(one.name, (RESULTS[one.name],), warehouse=True)
            found[one.name] = copies_of(audit)
    return found


def verify(
    copies: Mapping[str, Mapping[Side, Fingerprint]],
    compared: Mapping[str, FlightsComparison],
    outputs: Mapping[str, Outputs],
    dead_letters: Mapping[str, int],
) -> tuple[ProcessorVerdict, ...]:
    """Returns one verdict for each processor, which combines the results of all comparisons of this processor.

    ``dead_letters`` maps a processor to its expected number of dead letters.
    """
    verdicts = []
    for name, wholes in copies.items():
        found, wrote = compared[name], outputs[name]
        verdicts.append(
            ProcessorVerdict(
                processor=name,
                keys=found.keys,
                differing=found.mismatches,
                examples=tuple(str(row["message_key"]) for row in found.examples[:5]),
                copies=wholes,
                outputs=wrote.sequences,
                dead_letters=wrote.dead_letters,
                dead_letters_expected=dead_letters.get(name, 0),
                things="keys" if wrote.closed is None else "windows",
            )
        )
    return tuple(verdicts)


def copies_of(audit: StoreAudit) -> dict[Side, Fingerprint]:
    """The fingerprint (hash of all keys and values) of each copy of a store over all partitions.

    If a partition was compared at two offsets, the fingerprint at the greater offset is used.
    """
    found: dict[Side, dict[int, Fingerprint]] = {side: {} for side in Side}
    for moment in reversed(audit.moments):
        for side, whole in moment.wholes.items():
            found[side][moment.partition] = whole
    return {side: sum(wholes.values(), Fingerprint()) for side, wholes in found.items()}
