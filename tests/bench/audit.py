"""Measures what it costs to fingerprint each copy of a store in 256 buckets of keys, and to find a difference.

    python -m tests.bench.audit                     1,000,000 keys, 3 rounds
    python -m tests.bench.audit --size 100000 --rounds 1

``rows/CPU-s`` counts the CPU of this process with all its threads, including those of the Kafka client and Arrow, but
not of the broker. ``changelog`` counts the records that were read. Each way must give the fingerprints that plain
Python computes. ``one key differs`` measures a whole audit of the three copies, when one key of one table differs. That
audit reads all copies once, and then the differing buckets again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import load_settings
from holdfast.infra.warehouse.versions import VersionReader, table_version
from holdfast.processors.audits.comparison import Copy, Odd, Place, Side, compare_copies
from holdfast.processors.audits.copies import ChangelogCopy, StoreCopy, TableCopy
from holdfast.processors.engine.state.fingerprint import Fingerprint
from tests.bench.measured import RunWrong
from tests.bench.results import Figures
from tests.bench.scenario import Place as Bench
from tests.bench.scenario import Scenario, run_alone
from tests.bench.warehouse_data import NAMESPACE, PARTITIONS, STORE, Data

STORE_WAY, CHANGELOG_WAY, TABLE_WAY = "store", "changelog", "table"
WAYS = {Side.STORE: STORE_WAY, Side.CHANGELOG: CHANGELOG_WAY, Side.WAREHOUSE: TABLE_WAY}
ALL_THREE = "all three, one key differs"


class Rows:
    """The rows of one partition of a table; each iteration reads them again.

    With ``spoilt``, one key's value differs.
    """

    def __init__(self, version: VersionReader, partition: int, *, spoilt: bool = False) -> None:
        self._version, self._partition, self._spoilt = version, partition, spoilt

    def __iter__(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        for number, (keys, values) in enumerate(self._version.pairs(self._partition)):
            if number == 0 and self._spoilt:
                values = [values[0] + b" ", *values[1:]]
            yield keys, values


class AuditBench:
    """The bench of audits: one store with its three copies (checkpoint, changelog, table)."""

    def __init__(self, place: Bench) -> None:
        self._topics, self._topic = Topics(place.broker.bootstrap), f"bench-audit-{place.size}"
        self._data = Data(place.size, place.folder)
        self._settings = load_settings(home=place.folder / "home")
        self._ends: Mapping[int, int] = {}
        self._paths: Mapping[int, Path] = {}
        self._topic_id = ""

    def prepare(self) -> None:
        """Write all three copies of the store: checkpoint, changelog and table."""
        self._ends = self._data.write_changelog(self._topics, self._topic)
        self._topic_id = self._topics.describe([self._topic])[self._topic].topic_id
        self._paths = self._data.write_checkpoints({number: self._place(number) for number in range(PARTITIONS)})
        self._data.write_table(self._settings)

    def one(self, side: Side) -> Figures:
        """Fingerprint one copy.

        Raises:
            RunWrong: The fingerprints differ from plain Python's.
        """
        rows = 0

        def run() -> None:
            nonlocal rows
            found: dict[int, Fingerprint] = {}
            for number in range(PARTITIONS):
                copy = self._copies(number)[side]
                found[number] = copy.prints().whole
                rows += copy.records if isinstance(copy, ChangelogCopy) else found[number].count
            if found != self._data.expected:
                raise RunWrong(f"the {side.value} came to {found}, expected {self._data.expected}")

        return _figures(run, lambda: rows)

    def differing(self) -> Figures:
        """Audit all three copies, one of which differs in one key.

        Raises:
            RunWrong: The audit did not find the difference.
        """
        version = self._version()

        def run() -> None:
            for number in range(PARTITIONS):
                copies = self._copies(number)
                changelog = copies[Side.CHANGELOG]
                assert isinstance(changelog, ChangelogCopy)
                copies[Side.WAREHOUSE] = TableCopy(Rows(version, number, spoilt=number == 0))
                found = compare_copies(number, self._place(number), copies, changelog.superseded)
                if found.odd != ({Odd.WAREHOUSE: 1} if number == 0 else {}):
                    raise RunWrong(f"partition {number} differs in {found.odd}")

        return _figures(run, lambda: 3 * self._data.keys)

    def _copies(self, number: int) -> dict[Side, Copy]:
        return {
            Side.STORE: StoreCopy(self._paths[number], STORE, self._place(number)),
            Side.CHANGELOG: ChangelogCopy(self._topics, Partition(self._topic, number), self._ends[number], {}),
            Side.WAREHOUSE: TableCopy(Rows(self._version(), number)),
        }

    def _version(self) -> VersionReader:
        return table_version(self._settings.paths, NAMESPACE, STORE)

    def _place(self, number: int) -> Place:
        return Place(self._topic_id, self._ends[number])


def _figures(run: Callable[[], None], rows: Callable[[], int]) -> Figures:
    began, cpu = time.monotonic(), time.process_time()
    run()
    seconds, used = time.monotonic() - began, time.process_time() - cpu
    return {"rows/CPU-s": rows() / used, "rows/s": rows() / seconds, "rows": rows(), "s": seconds}


def measure(place: Bench) -> Iterator[tuple[str, Figures]]:
    """Run all measurements in turns, and yield the name and figures of each run."""
    bench = AuditBench(place)
    bench.prepare()
    for _ in range(place.rounds):
        for side, way in WAYS.items():
            yield way, bench.one(side)
        yield ALL_THREE, bench.differing()


SCENARIO = Scenario(
    "audit",
    "fingerprints by 256 buckets of a store, its changelog and its table, {size:,} keys",
    size=1_000_000,
    small=4_000,
    measure=measure,
)


if __name__ == "__main__":
    sys.exit(run_alone(SCENARIO, sys.argv[1:]))
