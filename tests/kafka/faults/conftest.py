"""Fixtures: a broker behind a proxy, workers that connect through the proxy, and workers that kill themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.kafka.embedded.broker import BrokerAddress
from holdfast.infra.system.ports import free_port
from holdfast.infra.waiting import Deadline
from tests.kafka.faults.proxy import KafkaProxy
from tests.parts.brokers import TrackedBroker, new_broker

PROJECT = Path(__file__).resolve().parents[3]


class ProxiedBroker(TrackedBroker):
    """A broker with two listeners: a plain one for the tests, and one that clients reach only through the proxy."""

    proxy: KafkaProxy

    def _configure(self, port: int, controller_port: int, deadline: Deadline) -> None:
        super()._configure(port, controller_port, deadline)
        if not self.proxy.upstream:
            self.proxy.upstream = free_port()
        properties = self._folder / "server.properties"
        lines = dict(line.split("=", 1) for line in properties.read_text().splitlines())
        lines["listeners"] += f",PROXIED://127.0.0.1:{self.proxy.upstream}"
        # The plain listener must be the last one, because a restart of the broker reads the port from the end of the
        # list.
        lines["advertised.listeners"] = f"PROXIED://127.0.0.1:{self.proxy.port},{lines['advertised.listeners']}"
        lines["listener.security.protocol.map"] += ",PROXIED:PLAINTEXT"
        properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))


@dataclass
class Site:
    """A broker with its two addresses: direct, and through the proxy."""

    broker: ProxiedBroker
    address: BrokerAddress
    proxy: KafkaProxy

    @property
    def proxied(self) -> str:
        return f"127.0.0.1:{self.proxy.port}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    proxy = KafkaProxy()
    broker = new_broker(tmp_path_factory.mktemp("proxied"), kind=ProxiedBroker)
    broker.proxy = proxy
    yield Site(broker, broker.start(), proxy)
    broker.stop()
    proxy.close()


@pytest.fixture
def on_site(
    request: pytest.FixtureRequest, site: Site, stream_class: Any, unique: Callable[[str], str], tmp_path: Path
) -> Iterator[Any]:
    """Yield a stream with its topics on the proxied broker.

    ``stream.through`` is the same stream with the proxy's address.

    The fixture's parameter is the number of partitions.
    """
    partitions = getattr(request, "param", 2)
    stream = stream_class(site.address.bootstrap, unique("fault"), tmp_path / "state", partitions=partitions)
    stream.create_source()
    stream.provision()
    stream.through = replace(stream, bootstrap=site.proxied)
    yield stream
    site.proxy.calm()


@pytest.fixture
def workers(on_site: Any, worker_class: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A factory of worker processes for ``on_site`` that reach the broker through the proxy."""
    made: list[Any] = []

    def make(slot: str = "0", home: str = "home", guarantee: str = "exactly-once") -> Any:
        made.append(worker_class(on_site.through, tmp_path / home, slot))
        made[-1].environment.update(TEST_GUARANTEE=guarantee, TEST_SESSION_MS="4000")
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.kill()


@pytest.fixture
def die_at(on_site: Any, tmp_path: Path) -> Callable[..., int]:
    """Run a worker that kills itself at this step of its n-th commit; returns the worker's exit code."""

    def run(step: str, commit: int, guarantee: str = "exactly-once") -> int:
        script = Path(__file__).with_name("dying_worker.py")
        with (tmp_path / "dying.log").open("ab") as log:
            return subprocess.run(
                [
                    sys.executable,
                    str(script),
                    on_site.bootstrap,
                    on_site.group,
                    str(on_site.state_dir),
                    str(tmp_path / "home"),
                    guarantee,
                    step,
                    str(commit),
                ],
                env={**os.environ, "PYTHONPATH": str(PROJECT)},
                stdout=log,
                stderr=log,
                timeout=120,
                check=False,
            ).returncode

    return run
