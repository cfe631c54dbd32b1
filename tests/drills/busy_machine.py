"""A machine that has other things to do: snapshots of another processor, and a queue of Dagster that is full."""

from __future__ import annotations

import threading
import time
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
from tests.operating import DEFINITION, PARTITIONS

#: The processor whose store is written to the warehouse, with this number of messages of 100 keys.
NAME, MESSAGES = "in-the-warehouse", 2_000
TEXT = DEFINITION.format(group=NAME)
_ASSETS = (keys.state_key(NAME, "counts"), keys.snapshot_key(NAME, "counts"))
_RETRY_EVERY_S = 2.0


@contextmanager
def snapshots_beside(home: Home) -> Iterator[None]:
    """Snapshots one after the other, as long as the block lasts; at least one is through in it, and none fails."""
    _start(home)
    ended = threading.Event()
    statuses: list[str] = []
    thread = threading.Thread(target=_publish, args=(home, ended, statuses), daemon=True)
    begun = time.time()
    thread.start()
    wait_for(lambda: home.dagster.runs("__ASSET_JOB", since=begun), "a snapshot to be asked for")
    try:
        yield
    finally:
        ended.set()
        thread.join(RUN_PATIENCE_S)
    assert not thread.is_alive(), "the last snapshot does not end"
    assert statuses, "no snapshot ended"
    assert set(statuses) == {"SUCCESS"}


@contextmanager
def full_queue(home: Home) -> Iterator[None]:
    """Runs that do not end, as long as the block lasts: all that each lane admits, and one in each pool but Spark's."""
    with dg.DagsterInstance.from_config(str(home.settings.paths.dagster)) as instance:
        endless = fill_the_queue(instance, pools=("deploys",))
        try:
            yield
        finally:
            for run_id in endless:
                instance.delete_run(run_id)


def _start(home: Home) -> None:
    """Have the processor, with all its messages counted."""
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


def _publish(home: Home, ended: threading.Event, statuses: list[str]) -> None:
    while not ended.is_set():
        try:
            run = home.dagster.launch("__ASSET_JOB", {}, _ASSETS)
        except AssertionError:  # the project's module can't be imported now
            ended.wait(_RETRY_EVERY_S)
            continue
        statuses.append(home.dagster.ended(run))
