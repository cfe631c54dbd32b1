"""Makes the machine busy during drills: snapshots of another processor, and a full run queue in Dagster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from confluent_kafka import Producer

from holdfast.assets import keys
from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.lifecycle.plans.requests import Deploy
from tests.dagster.queued_runs import fill_the_queue
from tests.drills.home import Home
from tests.drills.patience import RUN_PATIENCE_S, wait_for
from tests.parts.operated import DEFINITION, PARTITIONS

#: The processor whose snapshots are taken, and the number of its messages (over 100 keys).
NAME, MESSAGES = "in-the-warehouse", 2_000
TEXT = DEFINITION.format(group=NAME)
_ASSETS = (keys.state_key(NAME, "counts"), keys.snapshot_key(NAME, "counts"))
_RETRY_EVERY_S = 2.0


@contextmanager
def snapshots_beside(home: Home, *, broken_module: bool = False) -> Iterator[None]:
    """Take snapshots continuously during the block, and assert that none fails. The last one ends with the block.

    With ``broken_module``, the block breaks the project's module. A snapshot that Dagster starts meanwhile may fail.
    """
    _start(home)
    publishing = _Publishing(home)
    thread = threading.Thread(target=publishing.run, daemon=True)
    thread.start()
    # wait for a run of this block, or for one that the sensor `kept_green` requested earlier
    wait_for(lambda: "STARTED" in home.dagster.runs("__ASSET_JOB", since=0.0), "a snapshot to be under way")
    try:
        yield
    finally:
        publishing.stop()
        thread.join(RUN_PATIENCE_S)
    assert not thread.is_alive(), "the last snapshot does not end"
    failing = {"FAILURE"} if broken_module else set()
    assert set(publishing.ended) <= {"SUCCESS", "CANCELED"} | failing


@contextmanager
def full_queue(home: Home) -> Iterator[None]:
    """Fill the queue with endless runs during the block. Only urgent runs, recovery and Spark's pool have room."""
    with dg.DagsterInstance.from_config(str(home.settings.paths.dagster)) as instance:
        endless = fill_the_queue(instance, pools=("deploys",))
        try:
            yield
        finally:
            for run_id in endless:
                instance.delete_run(run_id)


def _start(home: Home) -> None:
    """Deploy the processor, unless it exists, and wait until all its messages are counted."""
    if home.topics.describe([f"{NAME}-in"]):
        return
    home.topics.create(TopicSpec(f"{NAME}-in", PARTITIONS, 1))
    producer = Producer({"bootstrap.servers": home.topics.bootstrap})
    for number in range(MESSAGES):
        producer.produce(f"{NAME}-in", b"1", f"k{number % 100}".encode())
    assert producer.flush(60) == 0
    with home.verbs() as verbs:
        verbs.apply(verbs.plan(Deploy(NAME)), sure=True)
    wait_for(lambda: sum(home.topics.committed_offsets(NAME).values()) == MESSAGES, f"{NAME} to count")


class _Publishing:
    """Takes snapshots of the processor continuously on a thread."""

    def __init__(self, home: Home) -> None:
        self.ended: list[str] = []
        self._dagster = home.dagster
        self._stopped = threading.Event()
        self._run: str | None = None

    def stop(self) -> None:
        """Start no further snapshot run, and terminate the current one."""
        self._stopped.set()
        if self._run is not None:
            self._dagster.terminate(self._run)

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._run = self._dagster.launch("__ASSET_JOB", {}, _ASSETS)
            except AssertionError:  # a drill has made the project's module impossible to import
                self._stopped.wait(_RETRY_EVERY_S)
                continue
            self.ended.append(self._dagster.ended(self._run))
