"""Compares a restore from a checkpoint plus a tail of 10 % with a replay of the whole changelog, on a real broker.

    python -m tests.bench.checkpoint                     2,000,000 changelog records, 3 rounds of each
    python -m tests.bench.checkpoint --size 200000 --rounds 1

First the engine restores 90 % of the records, and stores a checkpoint when it stops. Then the other 10 % are appended
to the changelog. The two ways take turns, each in a new process with an empty disk. The time is from the assignment of
the partitions until the last task runs. The last runs of both ways must end with the same state, byte for byte.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from holdfast.infra.kafka.embedded.broker import BrokerAddress
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.engine.changelog.format import META_KEY
from tests.bench.contenders import Work
from tests.bench.held import check_state
from tests.bench.measured import RunWrong, Usage, run_measured
from tests.bench.results import Figures
from tests.bench.scenario import Place, Scenario, run_alone
from tests.bench.seeding import fill, first_of_each_partition, rows_of_ours, seed
from tests.bench.stream import PARTITIONS, SeededState, bodies

PROJECT = Path(__file__).resolve().parent.parent.parent
#: The number of messages in each run, after which the run ends.
MESSAGES = 200
TAIL_PART = 10
LIMIT_S = 900.0
#: The names of the two ways to restore, in the results.
FROM_CHECKPOINT, FULL_REPLAY = "checkpoint + 10 % tail", "full replay"


class CheckpointBench:
    """One group with its changelog and its checkpoint.

    Args:
        broker: The broker.
        folder: The folder for state and checkpoints.
        records: The number of changelog records; there are half as many keys.
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
        """Write the first 90 % of the changelog, store a checkpoint of them, and append the rest."""
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

    def measure(self, rounds: int) -> Iterator[tuple[str, Figures]]:
        """Run both ways in turns: from the checkpoint, and from the whole changelog.

        Raises:
            RunWrong: A run's state differs from its changelog, or the run did not restore in the way that is measured.
        """
        store, records = self._folder / "store", self._state.records
        for number in range(rounds):
            # Check only the last run of each way, because reading all state takes much longer than the restore.
            checked = number == rounds - 1
            shutil.rmtree(store, ignore_errors=True)
            shutil.copytree(self._kept, store)
            self._feed()
            short = self._run({"URL": str(store), "STOP_WAIT_S": "0"})
            if checked:
                check_state(self._work, self._state.keys)
            if short.told["restored"] > records // 2:
                raise RunWrong(f"no checkpoint was used: {short.told['restored']} records were replayed")
            yield FROM_CHECKPOINT, _figures(short)
            self._feed()
            full = self._run({"ENABLED": "false"})
            if checked:
                check_state(self._work, self._state.keys)
            if full.told["restored"] < records:
                raise RunWrong(f"a full replay had {full.told['restored']} of {records} records")
            yield FULL_REPLAY, _figures(full)

    def _feed(self) -> None:
        fill(self._work.bootstrap, ((self._work.source, *row, None) for row in bodies(MESSAGES, self._state.keys)))

    def _run(self, checkpoints: dict[str, str]) -> Usage:
        shutil.rmtree(self._work.state_dir, ignore_errors=True)
        environment = {f"HOLDFAST_CHECKPOINTS__{name}": value for name, value in checkpoints.items()}
        environment |= {"PYTHONPATH": str(PROJECT), "HOLDFAST_HOME": str(self._folder / "home")}
        command = (sys.executable, "-m", "tests.bench.ours", *self._work.arguments())
        return run_measured(command, environment, self._broker.pid, LIMIT_S)


def _figures(usage: Usage) -> Figures:
    return {"restore s": usage.told["restore_s"], "replayed": usage.told["restored"], "CPU s": usage.cpu_s}


def measure(place: Place) -> Iterator[tuple[str, Figures]]:
    """Make the checkpoint, and then run both ways in turns."""
    bench = CheckpointBench(place.broker, place.folder, place.size)
    bench.prepare()
    yield from bench.measure(place.rounds)


SCENARIO = Scenario(
    "checkpoint",
    "restore of {size:,} changelog records, from a checkpoint against from the changelog alone",
    size=2_000_000,
    small=20_000,
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(run_alone(SCENARIO, sys.argv[1:]))
