"""The embedded broker with real jars starts, outlives its starter, keeps its data, and refuses unsafe starts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.infra.kafka.clients.client import bootstrap_servers
from holdfast.infra.kafka.embedded.broker import (
    BrokerAddress,
    BrokerAlreadyRunning,
    BrokerDidNotStart,
    EmbeddedBroker,
    PortTaken,
    answers_metadata,
    embedded_broker,
    running_broker,
    stop_broker,
)
from holdfast.infra.kafka.errors import BrokerUnreachable
from holdfast.infra.settings import load_settings
from holdfast.infra.setup.java import BRIEF, Java, find_java
from holdfast.infra.system.process import is_running
from holdfast.infra.waiting import wait_until
from tests.parts.brokers import OWN_HEAP_MB

PROJECT = Path(__file__).resolve().parent.parent.parent
STARTER = """
import sys
from pathlib import Path
from holdfast.infra.setup.java import find_java
from holdfast.infra.kafka.embedded.broker import EmbeddedBroker
folder, *jars = map(Path, sys.argv[1:])
print(EmbeddedBroker(folder, heap_mb=256, java=find_java(), jars=jars).start().pid)
"""


@pytest.fixture
def make(tmp_path: Path, java: Java, broker_jars: tuple[Path, ...]) -> Iterator[Callable[..., EmbeddedBroker]]:
    """A factory of brokers in the test's folder; the fixture stops a broker that still runs."""

    def make(**options) -> EmbeddedBroker:
        given = {"heap_mb": OWN_HEAP_MB, "java": java, "jars": broker_jars, "options": [BRIEF], **options}
        return EmbeddedBroker(tmp_path / "kafka", **given)

    yield make
    make().stop(timeout_s=5)


def create_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)


def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def committed_values(bootstrap: str, topic: str) -> list[bytes]:
    """All values up to the end that a read_committed reader sees."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error():
            break
        if message is not None:
            values.append(message.value())
    consumer.close()
    return values


def wait_until_ended(pid: int, mark: str) -> None:
    deadline = time.monotonic() + 20
    while is_running(pid, mark):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_outlives_its_starter_refuses_a_second_one_and_keeps_its_data(make, tmp_path, broker_jars) -> None:
    folder = tmp_path / "kafka"
    command = [sys.executable, "-c", STARTER, str(folder), *map(str, broker_jars)]
    starter = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=90)
    there = running_broker(folder)
    assert there is not None
    assert there.pid == int(starter.stdout)
    create_topic(there.bootstrap, "kept")
    produce(there.bootstrap, "kept", b"one", b"two")

    with pytest.raises(BrokerAlreadyRunning) as refusal:
        make().start()
    assert refusal.value.fields["pid"] == there.pid
    assert committed_values(there.bootstrap, "kept") == [b"one", b"two"]

    make().stop()
    assert running_broker(folder) is None
    assert not is_running(there.pid, there.mark)

    with ThreadPoolExecutor() as pool:  # two concurrent commands start one broker, and both return its address
        again, same = pool.map(lambda _: make().find_or_start(), range(2))
    assert again == same == running_broker(folder)
    assert again.port == there.port
    assert committed_values(again.bootstrap, "kept") == [b"one", b"two"]


@pytest.mark.thorough
def test_a_killed_broker_counts_as_gone_and_comes_back_with_its_data(make, tmp_path) -> None:
    first = make().start()
    create_topic(first.bootstrap, "kept")
    produce(first.bootstrap, "kept", b"one")
    os.kill(first.pid, signal.SIGKILL)
    wait_until_ended(first.pid, first.mark)
    assert make().running() is None
    second = make().start()
    assert second.bootstrap == first.bootstrap
    assert committed_values(second.bootstrap, "kept") == [b"one"]


@pytest.mark.thorough
def test_transactions_work_on_the_wheels_java(make) -> None:
    address = make(java=find_java({})).start()
    create_topic(address.bootstrap, "ledger")
    producer = Producer({"bootstrap.servers": address.bootstrap, "transactional.id": "writer"})
    producer.init_transactions(30)
    for value, commit in ((b"first", True), (b"undone", False), (b"second", True)):
        producer.begin_transaction()
        producer.produce("ledger", value)
        producer.flush(20)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    assert committed_values(address.bootstrap, "ledger") == [b"first", b"second"]


def test_a_taken_port_is_an_error_that_names_it(make) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)) as failure:
            make(port=port).start()
    assert "HOLDFAST_KAFKA__EMBEDDED_PORT" in failure.value.action
    assert make().running() is None


def test_a_broker_that_can_not_start_says_why(make, tmp_path, java) -> None:
    with pytest.raises(BrokerDidNotStart) as failure:
        make(jars=[]).start()
    assert "StorageTool" in failure.value.message
    assert str(tmp_path / "kafka" / "broker.log") in failure.value.action


def test_data_that_is_not_a_brokers_is_refused_and_nothing_is_left_running(make, tmp_path) -> None:
    data = tmp_path / "kafka" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=other\n")
    with pytest.raises(BrokerDidNotStart, match="exit code"):
        make().start()
    assert make().running() is None


@pytest.mark.thorough
def test_it_listens_on_loopback_only(make) -> None:
    address = make().start()
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for host in others - {"127.0.0.1", "127.0.1.1"}:
        with pytest.raises(OSError):
            socket.create_connection((host, address.port), timeout=2)


@pytest.mark.thorough
def test_a_broker_whose_start_was_killed_is_stopped_and_stands_in_no_ones_way(make, tmp_path, broker_jars) -> None:
    folder = tmp_path / "kafka"
    starting = folder / "broker-starting.json"

    def killed_start() -> BrokerAddress:
        command = [sys.executable, "-c", STARTER, str(folder), *map(str, broker_jars)]
        starter = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL)
        assert wait_until(starting.exists, 90.0, every_s=0.005)
        starter.kill()
        starter.wait()
        return BrokerAddress(**json.loads(starting.read_text()))

    left = killed_start()
    assert running_broker(folder) is None, "it did not answer yet"
    assert is_running(left.pid, left.mark)
    assert stop_broker(folder)
    assert not is_running(left.pid, left.mark)
    assert not starting.exists()

    left = killed_start()
    there = make().start()
    assert not is_running(left.pid, left.mark), "two brokers would share the folder"
    assert running_broker(folder) == there
    assert not starting.exists()


def test_stopping_what_does_not_run_is_fine(make) -> None:
    make().stop()


@pytest.mark.thorough
def test_the_broker_of_a_home_is_found_by_its_clients_and_by_nobody_after_it_stopped(tmp_path) -> None:
    settings = load_settings(home=tmp_path)
    home_broker = embedded_broker(settings)
    try:
        address = home_broker.start()
        assert bootstrap_servers(settings) == address.bootstrap
        assert answers_metadata(address.bootstrap)
    finally:
        home_broker.stop()
    with pytest.raises(BrokerUnreachable):
        bootstrap_servers(settings)
    assert not answers_metadata(address.bootstrap, timeout_s=0.5)
