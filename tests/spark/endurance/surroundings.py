"""The environment of the endurance test: home folder, supervised processor, feed of its source, standalone Spark."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.kafka.clients.feeder import Feeder
from holdfast.infra.kafka.records import Partition, TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import PROJECT, Settings, load_settings
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.verbs import Verbs, open_verbs
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from tests.spark.endurance.definition import DEFINITION, PARTITIONS, STORE
from tests.spark.endurance.publishing_driver import PublishingDriver
from tests.spark.standalone import Cluster
from tests.spark.tuning import COMPILED_ONCE, INTERPRETED

PATIENCE_S = 240.0
KEYS = 600
#: Messages per second, and the share of messages that reset their key.
PACE, GONE_SHARE = 120.0, 0.12
#: Keep every tagged version, so that all can be verified at the end. All other data is deleted as early as the settings
#: allow.
KEPT = {"KEEP_SNAPSHOTS": "100000", "KEEP_VERSIONS_HOURS": "1", "COMPACT_EVERY": "6", "LEFTOVERS_HOURS": "24"}


class Feed(threading.Thread):
    """Feeds numbered messages at a steady rate until ``finish`` is called."""

    def __init__(self, bootstrap: str, topic: str, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._address, self._topic, self._rng = bootstrap, topic, rng
        self._ended = threading.Event()
        self.failed: BaseException | None = None
        self.sent = 0

    def run(self) -> None:
        try:
            with Feeder(self._address, {"message.timeout.ms": 600_000}) as feeder:
                while not self._ended.wait(1 / PACE):
                    self._send(feeder)
                    feeder.poll(0)
        except BaseException as failure:
            self.failed = failure

    def finish(self) -> None:
        self._ended.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the feed does not end"
        assert self.failed is None, self.failed

    def _send(self, feeder: Feeder) -> None:
        # Some keys are frequent, most keys are rare.
        key = f"k{min(int(self._rng.expovariate(1 / 120)), KEYS - 1)}"
        value = {"id": self.sent, "amount": self._rng.randrange(-50, 1000), "gone": self._rng.random() < GONE_SHARE}
        feeder.send(self._topic, key.encode(), msgspec.json.encode(value), int(time.time() * 1000))
        self.sent += 1


@dataclass
class Run:
    """The parts of one endurance test, for the other modules of this folder."""

    group: str
    settings: Settings
    verbs: Verbs
    topics: Topics
    cluster: Cluster
    folder: Path
    #: Registers a function that is called at the end.
    at_end: Callable[[Callable[[], None]], object]

    @property
    def source(self) -> str:
        return f"{self.group}-in"

    @property
    def changelog(self) -> str:
        return f"{self.group}-{STORE}-changelog"

    @property
    def table(self) -> str:
        return f"{self.group}.{STORE}"

    @property
    def client(self) -> ProcessorClient:
        return ProcessorClient(self.group, "0", self.settings.paths)

    def driver(self) -> PublishingDriver:
        return PublishingDriver(
            self.topics.bootstrap, self.group, {"PYTHONPATH": os.environ["PYTHONPATH"]}, self.folder / "driver.log"
        )

    def wait_running(self, but: int | None = None) -> int:
        """Wait until the worker runs in a process other than ``but``. Returns the process id."""

        def running() -> bool:
            status = self.client.status()
            return status is not None and status.phase == "running" and status.pid != but

        assert wait_until(running, PATIENCE_S, every_s=0.2), f"{self.group} does not run"
        status = self.client.status()
        assert status is not None
        return int(status.pid)

    def caught_up(self) -> bool:
        """Whether all messages that were fed are committed."""
        committed = self.topics.committed_offsets(self.group)
        ends = self.topics.end_offsets(self.source, committed=True)
        return all(committed.get(Partition(self.source, number), 0) >= end for number, end in ends.items())


@contextmanager
def surroundings(bootstrap: str, folder: Path, group: str) -> Iterator[Run]:
    """Start everything except the processor. Stop all of it at the end of the block."""
    module = f"definition_{group.replace('-', '_')}"
    (folder / f"{module}.py").write_text(DEFINITION.format(group=group))
    (folder / "cluster").mkdir()
    with ExitStack() as started:
        cluster = Cluster(folder / "cluster")
        started.callback(cluster.stop)
        cluster.start()
        spark = {"spark.executor.memory": "512m", **COMPILED_ONCE, **INTERPRETED}
        os.environ |= {
            "PYTHONPATH": f"{PROJECT}{os.pathsep}{folder}",
            "HOLDFAST_HOME": str(folder / "home"),
            "HOLDFAST_CHECKPOINTS__URL": str(folder / "checkpoints"),
            "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "HOLDFAST_PROCESSORS": json.dumps([f"{module}:application"]),
            "HOLDFAST_SPARK__MASTER": cluster.url,
            "HOLDFAST_SPARK__SECRET": cluster.secret,
            "HOLDFAST_SPARK__CONF": json.dumps(spark),
            **{f"HOLDFAST_MAINTENANCE__{name}": value for name, value in KEPT.items()},
        }
        sys.path.insert(0, str(folder))
        settings, topics = load_settings(), Topics(bootstrap)
        topics.create(TopicSpec(f"{group}-in", PARTITIONS, 1))
        started.callback(_stop_supervisor, settings)
        verbs = started.enter_context(open_verbs(settings, who="the endurance run"))
        yield Run(group, settings, verbs, topics, cluster, folder, started.callback)


def _stop_supervisor(settings: Settings) -> None:
    if settings.paths.supervisor.is_dir():
        Supervisord(settings.paths).stop()
