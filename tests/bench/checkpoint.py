"""Restore from a checkpoint and a tail of 10 %, against a replay of the whole changelog, on a real broker.

    python -m tests.bench.checkpoint                     2,000,000 changelog records, 3 rounds of each
    python -m tests.bench.checkpoint --records 200000 --rounds 1

The engine restores 90 % of the records, stores a checkpoint at its end, and the rest is appended. Then both ways take
turns, each in a process of its own with an empty disk. Time is from the assignment of the partitions to the moment when
the last task runs. Both have to end with the same state, to the byte.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from infra.jars import JarSource, fetch_jars
from infra.java import find_java
from infra.kafka.broker import BrokerAddress, EmbeddedBroker
from infra.kafka.records import TopicSpec
from infra.kafka.topics import Topics
from infra.settings import load_settings
from processors.changelog.format import META_KEY
from processors.lifecycle.audit import fingerprint_changelog
from processors.state.fingerprint import Fingerprint, fingerprint_of
from processors.state.rocksdb import StateReader
from tests.bench.measured import RunWrong, Usage, run_measured
from tests.bench.ours import application_of
from tests.bench.seeding import fill, first_of_each_partition, rows_of_ours, seed
from tests.bench.stream import PARTITIONS, SeededState, bodies
from tests.bench.told import Work

PROJECT = Path(__file__).resolve().parent.parent.parent
#: Messages of each run: it has to come to its end.
MESSAGES = 200
TAIL_PART = 10
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One way to restore: seconds of each run, and changelog records replayed in the last."""

    seconds: tuple[float, ...]
    records: int


class CheckpointBench:
    """One group with its changelog and its checkpoint.

    Args:
        broker: The broker.
        folder: For state and checkpoints.
        records: Changelog records in all; half as many keys.
    """

    def __init__(self, broker: BrokerAddress, folder: Path, records: int) -> None:
        self._broker, self._folder = broker, folder
        self._state = SeededState(records, max(1, records // 2))
        self._kept = folder / "kept"
        self._work = Work(
            bootstrap=broker.bootstrap,
            group=f"bench-checkpoint-{records}",
            source=f"bench-checkpoint-{records}-in",
            output=f"bench-checkpoint-{records}-out",
            count=MESSAGES,
            guarantee="exactly-once",
            commit_s=1.0,
            state_dir=str(folder / "state"),
            restore=records,
        )

    def prepare(self) -> None:
        """Fill the changelog, and store the checkpoint that lacks its last part."""
        work, topics = self._work, Topics(self._broker.bootstrap)
        for topic in (work.source, work.output):
            topics.create(TopicSpec(topic, PARTITIONS, 1))
        fill(work.bootstrap, first_of_each_partition(work.source))
        early = replace(self._state, records=self._state.records - self._state.records // TAIL_PART)
        seed("ours", work, topics, early)
        self._feed()
        self._run({"URL": str(self._kept), "STOP_WAIT_S": "600"})
        if not list(self._kept.rglob("manifests/*.json")):
            raise RunWrong("the engine stored no checkpoint")
        tail = (row for row in rows_of_ours(work, topics, self._state) if row[2] != META_KEY)
        fill(work.bootstrap, (row for number, row in enumerate(tail) if number >= early.records))

    def measure(self, rounds: int) -> tuple[Measured, Measured]:
        """Both ways, in turns: from the checkpoint, and from the whole changelog.

        Raises:
            RunWrong: One has other state than its changelog, or did not do what it is measured for.
        """
        store = self._folder / "store"
        runs: list[tuple[Usage, Usage]] = []
        for _ in range(rounds):
            shutil.rmtree(store, ignore_errors=True)
            shutil.copytree(self._kept, store)
            self._feed()
            with_store = self._run({"URL": str(store), "STOP_WAIT_S": "0"})
            self._check_state()
            self._feed()
            whole = self._run({"ENABLED": "false"})
            self._check_state()
            runs.append((with_store, whole))
        short, full = ([pair[place] for pair in runs] for place in (0, 1))
        expected = self._state.records
        if any(usage.told["restored"] < expected for usage in full):
            raise RunWrong(f"a full replay had {[usage.told['restored'] for usage in full]} of {expected} records")
        if any(usage.told["restored"] > expected // 2 for usage in short):
            raise RunWrong(
                f"no checkpoint was used: {[usage.told['restored'] for usage in short]} records were replayed"
            )
        return _measured(short), _measured(full)

    def _feed(self) -> None:
        fill(self._work.bootstrap, ((self._work.source, *row, None) for row in bodies(MESSAGES, self._state.keys)))

    def _run(self, checkpoints: dict[str, str]) -> Usage:
        shutil.rmtree(self._work.state_dir, ignore_errors=True)
        environment = {f"HOLDFAST_CHECKPOINTS__{name}": value for name, value in checkpoints.items()}
        environment |= {"PYTHONPATH": str(PROJECT), "HOLDFAST_HOME": str(self._folder / "home")}
        command = (sys.executable, "-m", "tests.bench.ours", *self._work.arguments())
        return run_measured(command, environment, self._broker.pid, LIMIT_S)

    def _check_state(self) -> None:
        """What the last run left on its disk is what the changelog holds."""
        topology = application_of(self._work).topology()

        def rows() -> Iterator[tuple[bytes, bytes]]:
            for path in sorted(Path(self._work.state_dir).glob("*/*/*")):
                if (path / "CURRENT").exists():
                    reader = StateReader(path)
                    yield from reader.items(topology.stores[0].name)
                    reader.close()

        topic, held, expected = topology.changelogs[0].topic.name, fingerprint_of(rows()), Fingerprint()
        for number, end in Topics(self._work.bootstrap).settled_end_offsets(topic, LIMIT_S).items():
            expected += fingerprint_changelog(self._work.bootstrap, topic, number, end, {}).fingerprint
        if held != expected or held.count != self._state.keys:
            raise RunWrong(f"the state is {held.hex}, its changelog is {expected.hex}")


def _measured(usages: list[Usage]) -> Measured:
    return Measured(tuple(usage.told["restore_s"] for usage in usages), usages[-1].told["restored"])


def block(short: Measured, full: Measured) -> str:
    """The figures and their ratio, as lines."""
    rows = [
        f"  {name:<24} {measured.records:>12,} records   {min(measured.seconds):>8.2f} s best "
        f"{median(measured.seconds):>8.2f} s median"
        for name, measured in (("checkpoint + 10 % tail", short), ("full replay", full))
    ]
    ratio = median(full.seconds) / median(short.seconds)
    return "\n".join(
        ["restore, ours: from a checkpoint against from the changelog alone", *rows, f"  ratio {ratio:.1f}x"]
    )


def main(arguments: list[str]) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.checkpoint", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    settings, java = load_settings(), find_java()
    jars = fetch_jars("broker", settings.cache, JarSource(java, settings.ivy_settings))
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        broker = EmbeddedBroker(Path(folder) / "broker", heap_mb=1_024, java=java, jars=jars)
        try:
            bench = CheckpointBench(broker.start(), Path(folder), given.records)
            bench.prepare()
            print(block(*bench.measure(given.rounds)))
        except RunWrong as wrong:
            print(f"WRONG      {wrong}", file=sys.stderr)
            return 1
        finally:
            broker.stop()
    print(f"load       {' '.join(f'{load:.1f}' for load in os.getloadavg())} after the bench")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
