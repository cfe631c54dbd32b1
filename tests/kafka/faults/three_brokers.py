"""A cluster of three brokers with replication factor 3 and two in-sync replicas: any one broker may die."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from holdfast.infra.setup.java import BRIEF, Java
from holdfast.infra.system.ports import free_port
from holdfast.infra.waiting import Deadline
from tests.parts.brokers import HASTE, TrackedBroker

CLUSTER_ID = "HoldfastThreeBrokers00"
NODES = (1, 2, 3)
TRANSACTION_PARTITIONS = 4


class Node(TrackedBroker):
    """One node of the cluster, with its client port and the controller ports of all nodes."""

    _decides_alone = False

    def __init__(
        self, folder: Path, node: int, controllers: dict[int, int], java: Java, jars: tuple[Path, ...]
    ) -> None:
        super().__init__(folder, heap_mb=320, java=java, jars=jars, options=[BRIEF])
        self.node, self._controllers = node, controllers

    def _configure(self, port: int, controller_port: int, deadline: Deadline) -> None:
        voters = ",".join(f"{node}@127.0.0.1:{at}" for node, at in self._controllers.items())
        settings = {
            "process.roles": "broker,controller",
            "node.id": self.node,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{self._controllers[self.node]}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self._folder / "data",
            "auto.create.topics.enable": "false",
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": 3,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.min.isr": 2,
            "transaction.state.log.num.partitions": TRANSACTION_PARTITIONS,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 8 << 20,
            "broker.session.timeout.ms": 4000,
            "broker.heartbeat.interval.ms": 1000,
            "controller.quorum.election.timeout.ms": 1000,
            "controller.quorum.fetch.timeout.ms": 2000,
            "replica.lag.time.max.ms": 5000,
            **HASTE,
        }
        properties = self._folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if not (self._folder / "data" / "meta.properties").exists():
            tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
            subprocess.run([*self._java_command(BRIEF), *tool], capture_output=True, timeout=60, check=True)


class ThreeBrokers:
    """A cluster of three brokers, whose files lie in one folder."""

    def __init__(self, folder: Path, java: Java, jars: tuple[Path, ...]) -> None:
        controllers = {node: free_port() for node in NODES}
        self.nodes = {node: Node(folder / str(node), node, controllers, java, jars) for node in NODES}
        self.bootstrap = ""

    def start(self) -> None:
        """Start all stopped nodes at the same time, because one node alone has no quorum."""
        failures: list[BaseException] = []

        def start(node: Node) -> None:
            try:
                node.start(120)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=start, args=(node,)) for node in self.nodes.values() if not node.running()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        self.bootstrap = ",".join(node.running().bootstrap for node in self.nodes.values())

    def kill(self, node: int) -> None:
        os.kill(self.nodes[node].running().pid, signal.SIGKILL)

    def stop(self) -> None:
        for node in self.nodes.values():
            address = node.running()
            if address is not None:
                os.kill(address.pid, signal.SIGKILL)
            node.stop()

    def leader(self, topic: str, partition: int) -> int:
        """The node id of the partition's leader."""
        return self._partitions(topic)[partition].leader.id

    def whole(self, *topics: str) -> bool:
        """Whether every replica of these topics is in sync."""
        return all(len(part.isr) == len(NODES) for topic in topics for part in self._partitions(topic))

    def transaction_coordinator(self, transactional_id: str) -> int:
        """The node that coordinates a transactional id.

        Kafka takes the non-negative Java hash of the id modulo the number of partitions.
        """
        number = (_java_hash(transactional_id) & 0x7FFFFFFF) % TRANSACTION_PARTITIONS
        return self.leader("__transaction_state", number)

    def _partitions(self, topic: str):
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return admin.describe_topics(TopicCollection([topic]))[topic].result(30).partitions


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value
