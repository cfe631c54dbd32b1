"""Provides real brokers for tests and benches.

- `broker` (fixture): one broker for the whole run, shared by all test processes. Use it unless a test harms its broker.
- `own_broker` (fixture): a broker for one test, which the test may freeze, kill and restart.
- `started_broker` (context manager) and `new_broker`: a broker in any folder, also outside of pytest.

A broker outlives the process that started it. Each broker's folder is therefore listed in the run's folder, and
pytest's main process stops all listed brokers at the end. A test process that dies leaves no broker behind.
"""

from __future__ import annotations

import base64
import fcntl
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.infra.kafka.embedded.broker import BrokerAddress, EmbeddedBroker, running_broker
from holdfast.infra.settings import load_settings
from holdfast.infra.setup.jars import JarSource, fetch_jars
from holdfast.infra.setup.java import BRIEF, Java, find_java
from holdfast.infra.waiting import Deadline

#: Heap sizes in MiB: of a broker that one test uses, and of the broker that all tests share.
OWN_HEAP_MB, SHARED_HEAP_MB = 256, 512
#: Settings that shorten delays and intervals of brokers in production. No test depends on the shorter times.
HASTE = {
    "log.cleaner.backoff.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "group.min.session.timeout.ms": 1000,
}
#: The folder of pytest's run, the same in all its test processes. None outside of pytest.
_run: Path | None = None


class TrackedBroker(EmbeddedBroker):
    """A broker that remembers its address.

    Kafka's storage must be formatted before a broker starts, which takes time. If the run already has formatted
    storage, the broker copies it.
    """

    _address: BrokerAddress | None = None

    @property
    def address(self) -> BrokerAddress:
        """The broker's address. After a stop, the last address."""
        assert self._address is not None, "the broker was never started"
        return self._address

    def start(self, timeout_s: float = 120.0) -> BrokerAddress:
        """Start the broker and wait until it answers."""
        _write_down(self._folder)
        self._address = super().start(timeout_s)
        return self._address

    def _configure(self, port: int, controller_port: int, deadline: Deadline) -> None:
        if _run is None:
            super()._configure(port, controller_port, deadline)
            return
        data, formatted = self._folder / "data", _run / "formatted"
        if formatted.exists() and not data.exists():
            _copy_storage(formatted, data)
        super()._configure(port, controller_port, deadline)
        if not formatted.exists():
            _offer_storage(data, formatted)
        with (self._folder / "server.properties").open("a") as properties:
            properties.writelines(f"{name}={value}\n" for name, value in HASTE.items())


@cache
def broker_jars() -> tuple[Path, ...]:
    """The broker's jars as pinned in the lock file, from the machine's cache."""
    settings = load_settings()
    return fetch_jars("broker", settings.cache, JarSource(find_java(), settings.ivy_settings))


def new_broker(
    folder: Path,
    *,
    heap_mb: int = OWN_HEAP_MB,
    port: int | None = None,
    java: Java | None = None,
    options: Sequence[str] = (BRIEF,),
    kind: type[TrackedBroker] = TrackedBroker,
) -> Any:
    """Make a broker whose files are in a folder. The caller starts it.

    Args:
        folder: Holds all files that the broker writes.
        heap_mb: Heap bound, MiB.
        port: The port for clients; None takes a free one.
        java: The Java that runs the broker; None takes the machine's.
        options: Options of the broker's JVM. Benches pass an empty list, so their JVM runs as in production.
        kind: The class of the broker.
    """
    return kind(folder, port=port, heap_mb=heap_mb, java=java or find_java(), jars=broker_jars(), options=options)


@contextmanager
def started_broker(folder: Path, **options: Any) -> Iterator[Any]:
    """Start a broker in a folder, and stop it at the end of the block. ``options`` are those of `new_broker`."""
    broker = new_broker(folder, **options)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop(timeout_s=10)


def shared_broker() -> BrokerAddress:
    """Return the broker that all test processes of the run share. The first call in a run starts it."""
    assert _run is not None, "only pytest's runs have a shared broker"
    folder = _run / "broker"
    with (_run / "broker.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return running_broker(folder) or new_broker(folder, heap_mb=SHARED_HEAP_MB).start()


def belong_to(run: Path) -> None:
    """Set the folder of pytest's run. Every test process calls this before it makes a broker."""
    global _run
    _run = run


def stop_all(run: Path) -> None:
    """Stop all brokers that were started in a run and still run."""
    started = run / "brokers.txt"
    for folder in started.read_text().splitlines() if started.exists() else ():
        if running_broker(Path(folder)) is not None:
            # Stopping a broker needs no jars.
            EmbeddedBroker(Path(folder), java=find_java(), jars=()).stop(timeout_s=10)


def _copy_storage(formatted: Path, data: Path) -> None:
    shutil.copytree(formatted, data)
    # Formatting gives each cluster its own id, so a copy of formatted storage needs a new id.
    fresh = "H" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
    meta = data / "meta.properties"
    meta.write_text(re.sub(r"(?m)^cluster\.id=.*$", f"cluster.id={fresh}", meta.read_text()))


def _offer_storage(data: Path, formatted: Path) -> None:
    """Keep a copy of formatted storage for the run's later brokers.

    The rename is atomic: the copy is complete or absent.
    """
    copied = Path(shutil.copytree(data, formatted.with_name(f"formatted-{uuid.uuid4().hex}")))
    try:
        copied.rename(formatted)
    except OSError:  # another test process has already stored a copy of formatted storage
        shutil.rmtree(copied)


def _write_down(folder: Path) -> None:
    if _run is not None:
        with (_run / "brokers.txt").open("a") as started:
            started.write(f"{folder.resolve()}\n")
