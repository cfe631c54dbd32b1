"""A Spark driver in a separate process, controlled line by line: a test can kill it, or change its environment.

``python -m tests.spark.driver BOOTSTRAP PROCESSOR`` reads requests from standard input and answers each with one line
of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.assets.spark.maintenance import maintain_store
from holdfast.assets.spark.planning import planned_shape
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.settings import MaintenanceSettings
from holdfast.processors.engine.schema.types import INFERRED
from tests.spark.conftest import Changelog

PROJECT = Path(__file__).resolve().parent.parent.parent


class Attached(Changelog):
    """A changelog whose topic may already exist, because another process writes to it, too."""

    def create(self) -> None:
        self.topics.create(TopicSpec(self.topic, self.partitions, 1, self.config))


class Driver:
    """The test's side: starts the driver process and sends it requests."""

    #: The module that the process runs.
    module = "tests.spark.driver"

    def __init__(
        self,
        bootstrap: str,
        processor: str,
        environment: Mapping[str, str],
        log: Path,
        mounts: str | None = None,
    ) -> None:
        command = [sys.executable, "-m", self.module, bootstrap, processor]
        if mounts is not None:
            command = ["unshare", "-rm", "sh", "-c", f'{mounts} && exec "$@"', "sh", *command]
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.pid = self._answer()["ready"]

    def do(self, what: str, **arguments: Any) -> Any:
        """Send a request and return the answer; an error in the process comes back as {"error": ...}."""
        self.ask(what, **arguments)
        return self._answer()

    def ask(self, what: str, **arguments: Any) -> None:
        """Send a request without waiting for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self.process.stdin.flush()

    def answered(self) -> Any:
        """The answer to the last request; None if the process dies before it answers."""
        try:
            return self._answer()
        except EOFError:
            return None

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise EOFError(f"the driver ended: {self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        os.kill(self.pid, 9)
        self.process.wait(60)

    def end(self) -> int:
        """Close the process's input and wait until it exits. Returns the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(60)


def main(bootstrap: str, processor: str) -> None:
    """Answer requests until the input ends."""
    from holdfast.infra.settings import load_settings
    from holdfast.infra.spark.session import spark_session, stop_spark

    session = spark_session(load_settings(), app_name="driver")
    changelog = Attached(bootstrap, processor, session)
    _say({"ready": os.getpid()})
    plans: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _say({"answer": _do(changelog, plans, request)})
        except HoldfastError as error:
            _say({"error": error.as_dict()})
        except Exception as error:
            _say({"error": {"type": type(error).__name__, "message": str(error)[:3000], "action": ""}})
    stop_spark(session)


def _do(changelog: Any, plans: dict[str, Any], request: dict[str, Any]) -> Any:
    match request:
        case {"do": "write", "partition": partition, "entries": entries}:
            changelog.write(partition, [(key.encode(), value) for key, value in entries])
            return None
        case {"do": "plan", "name": name}:
            plans[name] = changelog.plan()
            return plans[name].snapshot_id
        case {"do": "snapshot", "name": name}:
            result = changelog.snapshot(plans.setdefault(name, None) or changelog.plan())
            manifest = result.manifest
            return {"id": manifest.snapshot_id, "committed": result.committed, "rows": manifest.rows}
        case {"do": "inferred"}:
            shape = planned_shape(changelog.spark, changelog.processor, "s", INFERRED)
            result = changelog.snapshot(changelog.plan(schema_version=shape), schema=INFERRED)
            kinds = {
                each.name: each.dataType.simpleString() for each in changelog.spark.table(changelog.table_name).schema
            }
            return {"rows": result.manifest.rows, "source": result.manifest.source, "kinds": kinds}
        case {"do": "maintain"}:
            done = maintain_store(
                changelog.spark, changelog.processor, "s", MaintenanceSettings(), datetime.now(UTC) + timedelta(hours=1)
            )
            return len(done)
        case {"do": "table", "tag": tag}:
            return changelog.table(tag)
        case {"do": "shell", "command": command}:
            return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
        case {"do": "workers"}:
            frame = changelog.spark.range(4, numPartitions=2).mapInArrow(_where, "pid long, home string, strays string")
            return sorted({(row["pid"], row["home"], row["strays"]) for row in frame.collect()})
    raise ValueError(f"no such request: {request}")


def _where(batches: Iterator[Any]) -> Iterator[Any]:
    """Run in an executor's Python: report the file of one Holdfast module, and modules that have a second name."""
    import pyarrow

    from holdfast.processors.engine.state import fingerprint

    ours = Path(fingerprint.__file__).resolve().parents[3]
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    strays = " ".join(
        name
        for name, file in sorted(files.items())
        if file
        and any(Path(file).resolve().is_relative_to(ours / folder) for folder in ("infra", "processors", "assets"))
        and not name.startswith("holdfast.")
    )
    for batch in batches:
        count = batch.num_rows
        found = {"pid": [os.getpid()] * count, "home": [fingerprint.__file__] * count, "strays": [strays] * count}
        yield pyarrow.RecordBatch.from_pydict(found)


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
