"""A standalone Spark cluster of one worker with a secret, run from the installed pyspark."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.infra.settings import load_settings
from holdfast.infra.setup.java import BRIEF, find_java, spark_java_home
from holdfast.infra.system.files import write_private
from holdfast.infra.system.ports import free_port

PATIENCE_S = 240.0
_EXECUTOR = "CoarseGrainedExecutorBackend"


class Cluster:
    """A master and a worker, each in a separate process. ``folder`` holds their logs and the files of executors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port, self._page = free_port(), free_port()
        #: The secret that every client of master, worker and executors needs.
        self.secret = secrets.token_urlsafe(24)
        properties = folder / "spark-defaults.conf"
        write_private(properties, f"spark.authenticate true\nspark.authenticate.secret {self.secret}\n")
        java = find_java()
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(spark_java_home(java, load_settings().cache)),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": BRIEF,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(folder),
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> Cluster:
        page = ["--webui-port", str(self._page)]
        self._run("master.Master", "--host", "127.0.0.1", "--port", str(self.port), *page)
        self._wait(lambda told: told["status"] == "ALIVE")
        work = ["--cores", "2", "--memory", "1g", "--webui-port", "0", "-d", str(self._folder / "work")]
        self._run("worker.Worker", "--host", "127.0.0.1", *work, self.url)
        self._wait(lambda told: told["aliveworkers"] == 1)
        return self

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait(30)

    def executors(self) -> list[int]:
        """The process ids of the executors that the worker runs now."""
        command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(self._processes[-1].pid)]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return [int(line.split()[0]) for line in listed.splitlines() if _EXECUTOR in line]

    def _run(self, name: str, *arguments: str) -> None:
        found = find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        command = Path(found.origin).parent / "bin" / "spark-class"
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(command), f"org.apache.spark.deploy.{name}", *arguments],
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                )
            )

    def _wait(self, fits: Callable[[Any], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as answer:
                    if fits(json.load(answer)):
                        return
            except OSError:
                pass
            logs = " ".join(path.read_text()[-1000:] for path in self._folder.glob("*.log"))
            assert all(process.poll() is None for process in self._processes), logs
            assert time.monotonic() < deadline, logs
            time.sleep(0.1)
