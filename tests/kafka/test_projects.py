"""A user's project, from an empty folder: init, run or up, then kill -9. The counts stay correct."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.paths import Paths
from holdfast.infra.settings import load_settings
from holdfast.infra.system.ports import free_port
from holdfast.processors.engine.serving.endpoint_file import read_endpoint
from tests.kafka.conftest import wait_for
from tests.mechanics.json_answers import compare
from tests.parts.wheels import outside

HOLDFAST = Path(sys.executable).parent / "holdfast"
KEYS = (b"alice", b"bob", b"carol")


class Project:
    """A project that `holdfast init` created, with the environment of its user."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder, self.name = folder, folder.name
        self.environment = outside(folder / ".holdfast", HOLDFAST_CACHE=str(load_settings().cache), **variables)
        del self.environment["HOLDFAST_HOME"]  # the default home is a folder in the project
        self.sent = 0

    def run(self, *words: str | Path, within: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            list(words),
            cwd=within or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        if "--json" in words:
            compare([str(each) for each in words[1:]], json.loads(done.stdout))
        return done

    def told_commands(self) -> list[list[str]]:
        """The commands in the first code block of the project's README."""
        (block,) = re.findall(r"^```console\n(.*?)^```", (self.folder / "README.md").read_text(), re.M | re.S)
        return [shlex.split(line.removeprefix("$ "), comments=True) for line in block.splitlines()]

    @contextmanager
    def running(self, *words: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """A process in the project's folder, and its log.

        The process is killed if it still runs at the end of the block.
        """
        log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        with log.open("w") as out:
            process = subprocess.Popen(list(words), cwd=self.folder, env=self.environment, stdout=out, stderr=out)
            try:
                yield process, log
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def send(self, bootstrap: str, topic: str, number: int) -> None:
        """Send orders with the amount 1 to the customers in turn."""
        producer = Producer({"bootstrap.servers": bootstrap})
        for _ in range(number):
            producer.produce(topic, b'{"amount": 1}', KEYS[self.sent % len(KEYS)])
            self.sent += 1
        assert producer.flush(60) == 0


def outputs(bootstrap: str, topic: str) -> list[tuple[bytes, dict[str, Any]]]:
    topics = Topics(bootstrap)
    if topic not in topics.describe([topic]):
        return []
    found = []
    for partition, end in topics.end_offsets(topic, committed=True).items():
        found += [(record.key, json.loads(record.value)) for record in read_range(bootstrap, topic, partition, 0, end)]
    return found


def assert_counted(values: list[tuple[bytes, dict[str, Any]]], number: int) -> None:
    """Assert that each order was counted once. Each output then raises its customer's count and sum by one order."""
    assert len(values) == number
    seen: dict[bytes, list[dict[str, Any]]] = defaultdict(list)
    for key, value in values:
        seen[key].append(value)
        assert value["count"] == len(seen[key])
        assert value["spent"] == sum(order["amount"] for order in seen[key])


@pytest.mark.thorough
def test_a_project_runs_in_the_foreground_and_counts_each_order_once(stream: Any, tmp_path: Path) -> None:
    folder = tmp_path / stream.group.replace("-", "_")
    project = Project(folder)
    made = project.run(HOLDFAST, "init", folder.name, within=tmp_path)
    assert made.returncode == 0, made.stderr
    module = folder / project.name / "processors.py"
    code = module.read_text()
    for old, new in (('"orders"', f'"{stream.source}"'), ('"orders_counted"', f'"{stream.sink}"')):
        assert code.count(old) == 1
        code = code.replace(old, new)
    module.write_text(code)
    with (folder / "holdfast.toml").open("a") as settings:
        settings.write(f'[kafka]\nbootstrap_servers = "{stream.bootstrap}"\n')

    with project.running(HOLDFAST, "run", f"{project.name}.processors:app") as (process, log):
        project.send(stream.bootstrap, stream.source, 300)
        wait_for(lambda: process.poll() is not None or outputs(stream.bootstrap, stream.sink), "the first outputs")
        assert process.poll() is None, log.read_text()[-3000:]
        process.kill()
    project.send(stream.bootstrap, stream.source, 300)

    # run the module itself as a program, which calls `app.run()`: it must send the remaining outputs
    with project.running(sys.executable, module) as (process, log):
        done = lambda: len(outputs(stream.bootstrap, stream.sink)) >= project.sent  # noqa: E731
        wait_for(lambda: process.poll() is not None or done(), "all outputs")
        wait_for(lambda: process.poll() is not None or re.search(r"\] running .*lag=0", log.read_text()), "its line")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()[-3000:]
    assert "] ended " in log.read_text()

    with project.running(HOLDFAST, "run", "--reload") as (process, log):
        starts = lambda: len(re.findall(r"\] running ", log.read_text()))  # noqa: E731
        wait_for(lambda: process.poll() is not None or starts() == 1, "the first start")
        module.write_text(code.replace('order.get("amount", 0)', 'order["amount"]'))
        wait_for(lambda: process.poll() is not None or starts() == 2, "the start after the edit")
        assert f"Edited: {project.name}/processors.py" in log.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()[-3000:]
    assert_counted(outputs(stream.bootstrap, stream.sink), 600)


@pytest.mark.thorough
def test_a_project_goes_up_and_survives_a_kill(tmp_path: Path) -> None:
    project = Project(tmp_path / "shop")
    assert project.run(HOLDFAST, "init", "shop", within=tmp_path).returncode == 0
    # a module outside of the package: a release must not depend on it, because a release copies only the package
    (project.folder / "prices.py").write_text("FREE = 0\n")
    module = project.folder / "shop" / "processors.py"
    code = module.read_text().replace("from holdfast import", "from prices import FREE\n\nfrom holdfast import")
    module.write_text(code.replace('order.get("amount", 0)', 'order.get("amount", FREE)'))
    assert "FREE)" in module.read_text()
    tested = project.run(sys.executable, "-m", "pytest", "-q")
    assert "2 passed" in tested.stdout, tested.stdout
    paths = Paths(project.folder / ".holdfast")
    try:
        started = project.run(HOLDFAST, "up", "--port", str(free_port()))
        assert started.returncode == 0, started.stdout + started.stderr
        assert "✓ shop: version" in started.stdout
        up, produce, query, down = project.told_commands()
        assert [up[1:], down[1:]] == [["up"], ["down"]]
        sent = project.run(HOLDFAST, *produce[1:])
        assert sent.returncode == 0, sent.stdout + sent.stderr
        wait_for(lambda: "spent" in project.run(HOLDFAST, *query[1:]).stdout, "the state of the README's orders")
        again = json.loads(project.run(HOLDFAST, "up", "--json").stdout)
        assert [(each["processor"], each["running"]) for each in again["processors"]] == [("shop", True)]
        bootstrap = again["kafka"]

        refused = project.run(HOLDFAST, "run")
        assert refused.returncode == 64
        assert "`holdfast stop shop`" in refused.stderr

        project.send(bootstrap, "orders", 300)
        wait_for(lambda: len(outputs(bootstrap, "orders_counted")) > 3, "the first outputs")
        endpoint = read_endpoint(paths.endpoint("shop", "0"))
        assert endpoint is not None
        os.kill(endpoint.pid, signal.SIGKILL)
        project.send(bootstrap, "orders", 300)
        wait_for(lambda: len(outputs(bootstrap, "orders_counted")) >= 603, "all outputs, after a recovery by Dagster")
        assert_counted(outputs(bootstrap, "orders_counted"), 603)

        module.write_text(f"{module.read_text()}\n\norders.update(lambda order: None)\n")
        edited = project.run(HOLDFAST, "up")
        assert edited.returncode == 0, edited.stdout + edited.stderr
        assert "is defined; deploy it with `holdfast deploy shop`" in edited.stdout

        settings = project.folder / "holdfast.toml"
        settings.write_text(settings.read_text().replace('"shop.processors"', '"shop.processors", "shop.nothing"'))
        partly = project.run(HOLDFAST, "up")
        assert partly.returncode == 2, partly.stdout + partly.stderr
        assert "✓ shop: version" in partly.stdout
        assert "✗ shop.nothing: shop.nothing can't be imported" in partly.stdout

        settings.write_text(settings.read_text().replace(', "shop.nothing"', ""))
        assert project.run(HOLDFAST, "down").returncode == 0
        module.write_text(module.read_text().replace("lambda order: None", "lambda order: 1 / 0"))
        returned = project.run(HOLDFAST, "up", "--port", str(free_port()))
        assert returned.returncode == 0, returned.stdout + returned.stderr
        assert "is defined; deploy it with `holdfast deploy shop`" in returned.stdout
        bootstrap = json.loads(project.run(HOLDFAST, "up", "--json").stdout)["kafka"]
        project.send(bootstrap, "orders", 300)
        wait_for(
            lambda: len(outputs(bootstrap, "orders_counted")) >= 903, "the outputs of the version that is deployed"
        )
    finally:
        ended = project.run(HOLDFAST, "down")
    assert "Stopped: webserver, daemon, supervisor and processors, broker." in ended.stdout
