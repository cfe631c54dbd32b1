"""A complete installation in one home: broker, supervisor, and Dagster's daemon, code server and webserver.

``holdfast up`` starts it on free ports, as on any machine. The processor of each drill is defined, but not deployed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import PROJECT, CheckpointSettings, KafkaSettings, Settings, load_settings
from holdfast.orchestration.verbs import Verbs, open_verbs
from tests.drills.dagster_answers import DagsterAnswers
from tests.mechanics.json_answers import compare
from tests.parts.brokers import TrackedBroker, new_broker

#: The source of a module that a processor definition imports.
HELPER = "def after(number):\n    return number + 1\n"
#: The name of the module with a project's own definitions for Dagster.
MODULE = "drill_assets"


@dataclass
class Told:
    """The exit code and the output of a command."""

    code: int
    text: str


@dataclass
class Home:
    """A started installation, with helpers that run its commands."""

    settings: Settings
    broker: TrackedBroker
    definitions: Path
    #: Environment variables of the installation's processes, in addition to those of the tests.
    environment: Mapping[str, str]
    #: The output of `holdfast up`.
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> Topics:
        assert self.settings.kafka.bootstrap_servers is not None
        return Topics(self.settings.kafka.bootstrap_servers)

    @property
    def dagster(self) -> DagsterAnswers:
        return DagsterAnswers(self.addresses["dagster"])

    def define(self, name: str, text: str) -> Path:
        """Write the module that defines a processor."""
        file = self.definitions / f"{module_of(name)}.py"
        file.write_text(text)
        return file

    def cli(self, *words: str, check: bool = True) -> Told:
        """Run a ``holdfast`` command as a user does."""
        with self.started(*words) as process:
            text, _ = process.communicate(timeout=300)
        if "--json" in words and text:
            compare([each for each in words if each == "--sizes" or not each.startswith("-")], json.loads(text))
        assert process.returncode == 0 or not check, (
            f"holdfast {' '.join(words)} ended with {process.returncode}: {text}"
        )
        return Told(process.returncode, text)

    def started(self, *words: str) -> subprocess.Popen[str]:
        """Start a ``holdfast`` command as a process, with the umask of most shells."""
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast.orchestration.cli", *words],
            cwd=PROJECT,
            env={**os.environ, **self.environment, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if "--json" in words else subprocess.STDOUT,
            text=True,
            umask=0o022,
        )

    @contextmanager
    def verbs(self) -> Iterator[Verbs]:
        """Open the verbs (operator commands) in this process, for preparations that the drill does not test."""
        with open_verbs(self.settings, who="a drill") as opened:
            yield opened

    def beside(self, *names: str) -> Home:
        """A second installation with these processors on the same broker. None of its processes runs yet."""
        home = self.settings.home.with_name("beside")
        targets = [f"{module_of(name)}:application" for name in names]
        own = {"HOLDFAST_HOME": str(home), "HOLDFAST_PROCESSORS": json.dumps(targets)}
        own["HOLDFAST_CHECKPOINTS__URL"] = str(home / "checkpoint-store")
        checkpoints = CheckpointSettings(url=own["HOLDFAST_CHECKPOINTS__URL"])
        settings = load_settings(
            home=home, kafka=self.settings.kafka, checkpoints=checkpoints, processors=tuple(targets)
        )
        return Home(settings, self.broker, self.definitions, {**self.environment, **own})

    def stop(self) -> None:
        """Stop all processes of the installation."""
        self.cli("down", check=False)
        self.broker.stop()
        with suppress(ValueError):
            sys.path.remove(str(self.definitions))


def module_of(name: str) -> str:
    """The name of the module that defines a processor."""
    return f"drill_{name.replace('-', '_')}"


def start_home(folder: Path, definitions: Mapping[str, str], module: str | None = None) -> Home:
    """Start an installation with these processors (name -> source of its module).

    Args:
        folder: The folder for all files.
        definitions: The processors to define; none is deployed.
        module: The source of a project's own Dagster module; None for no module.
    """
    code = folder / "definitions"
    code.mkdir(parents=True)
    broker = new_broker(folder / "kafka", heap_mb=384)
    home = folder / "home"
    bootstrap = broker.start().bootstrap
    environment = {
        "PYTHONPATH": os.pathsep.join([str(PROJECT), str(code)]),
        "HOLDFAST_HOME": str(home),
        "HOLDFAST_CHECKPOINTS__URL": str(home / "checkpoint-store"),
        "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        "HOLDFAST_PROCESSORS": json.dumps([f"{module_of(name)}:application" for name in definitions]),
    }
    settings = load_settings(
        home=home,
        kafka=KafkaSettings(bootstrap_servers=bootstrap),
        checkpoints=CheckpointSettings(url=environment["HOLDFAST_CHECKPOINTS__URL"]),
        processors=tuple(json.loads(environment["HOLDFAST_PROCESSORS"])),
    )
    if module is not None:
        environment["HOLDFAST_DEFINITIONS"] = MODULE
        (code / f"{MODULE}.py").write_text(module)
    (code / "drill_helper.py").write_text(HELPER)
    sys.path.insert(0, str(code))
    found = Home(settings, broker, code, environment)
    try:
        for name, text in definitions.items():
            found.define(name, text)
        found.addresses = dict(json.loads(found.cli("up", "--json").text))
    except BaseException:
        found.stop()
        raise
    return found
