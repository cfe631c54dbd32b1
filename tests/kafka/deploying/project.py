"""A user's project with one processor. The versions of its code count, fail, hang, or have other stores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.infra.settings import Settings
from holdfast.orchestration.verbs import Verbs, open_verbs
from holdfast.orchestration.world import open_registry
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.plans.requests import Deploy
from tests.kafka.conftest import Stream, wait_for

HEAD = """
import sys
import time

from holdfast import Application

DEPLOYED = "--release" in sys.argv

application = Application(
    consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.1,
    consumer_extra_config={{"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}}, {options}
)

def count(value, state):
    state.set("n", state.get("n", 0) + 1)
    return state.get("n")
"""
COUNTS = """
frame = application.dataframe(application.topic("{group}-in"))
frame = frame.apply(count, stateful=True, store="{store}")
frame.to_topic(application.topic("{group}-out"))
"""
POISONED = """
def poison(value):
    raise ValueError("no such field: speed")

frame = application.dataframe(application.topic("{group}-in"))
frame = frame.apply(poison).apply(count, stateful=True, store="{store}")
frame.to_topic(application.topic("{group}-out"))
"""
EXITS = """
if DEPLOYED:
    print("speed.yaml is not there", flush=True)
    sys.exit(64)
"""
NEVER_READY = """
if DEPLOYED:
    time.sleep(3600)
"""
TWO_STORES = (
    COUNTS
    + """
def length(value, state):
    state.set("length", state.get("length", 0) + 1)
    return value

frame.apply(length, stateful=True, store="lengths")
"""
)
JOINED = (
    COUNTS
    + """
def both(value, state):
    state.set("n", state.get("n", 0) + 1)
    return value

frame.apply(both, stateful=True, store="both")
application.dataframe(application.topic("{group}-paid")).apply(both, stateful=True, store="both")
"""
)


class Project:
    """A user's project with one module.

    Each operator command is run with a new connection to everything, as if it were run in a new process.
    """

    def __init__(self, stream: Stream, folder: Path, settings: Settings) -> None:
        self.stream, self.folder, self.settings = stream, folder, settings
        self.module = f"definition_{stream.group.replace('-', '_')}"
        self.path = folder / f"{self.module}.py"

    def write(self, *parts: str, store: str = "counts", options: str = "") -> None:
        text = "".join(part.format(group=self.stream.group, store=store, options=options) for part in parts)
        self.path.write_text(text)
        sys.modules.pop(self.module, None)

    @contextmanager
    def verbs(self) -> Iterator[Verbs]:
        with open_verbs(self.settings, who="ada") as verbs:
            yield verbs

    def plan(self, **request: object) -> Plan:
        with self.verbs() as verbs:
            return verbs.plan(Deploy(self.stream.group, **request))  # type: ignore[arg-type]

    def deploy(self, tell: Callable[[str], None] = lambda text: None, **request: object) -> str:
        with self.verbs() as verbs:
            plan = verbs.plan(Deploy(self.stream.group, **request))  # type: ignore[arg-type]
            verbs.apply(plan, sure=True, tell=tell)
            return verbs.definition(self.stream.group).topology.code_version

    @property
    def client(self) -> ProcessorClient:
        return ProcessorClient(self.stream.group, "0", self.settings.paths)

    def running_version(self) -> str:
        status = self.client.status()
        assert status is not None
        assert status.phase == "running"
        return status.code_version

    def outcomes(self) -> list[str | None]:
        registry = open_registry(self.settings)
        try:
            return [each.outcome for each in registry.journal.applies(processor=self.stream.group)]
        finally:
            registry.close()

    def counted(self, expected: dict[bytes, int]) -> None:
        """Wait until the changelog holds the expected counts, and assert that each output was sent once."""
        wait_for(lambda: self.stream.counts() == expected, f"counts of {expected}")
        self.stream.outputs_are_exact(expected)


FAILS_AT_SEVEN = """
def fragile(value):
    if value == 7:
        raise ValueError("no such number: 7")
    return value

frame = application.dataframe(application.topic("{group}-in"))
frame = frame.apply(fragile).apply(count, stateful=True, store="{store}")
frame.to_topic(application.topic("{group}-out"))
"""
