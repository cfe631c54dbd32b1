"""``holdfast run``: runs one processor in the foreground, with the same effect as ``app.run()`` in its module.

Invariants:
    - The command refuses a processor that has a live deployed worker, because Kafka would divide the partitions between
      the two workers.
    - With ``--reload``, each start is a new process, so that the edited module is imported.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.orchestration.commands.options import command_settings

if TYPE_CHECKING:
    from watchfiles.main import FileChange

    from holdfast.infra.paths import Paths
    from holdfast.infra.settings import Settings
    from holdfast.processors.application.registration import ProcessorDefinition

#: Maximum seconds that a worker may take to commit and end after an edit of the code; then it is killed.
_END_WITHIN_S = 30


class ProcessorDeployed(HoldfastError):
    """A deployed worker of the processor runs, so it can't also run in the foreground. Fields: processor, pid."""

    exit_code = EXIT_BAD_CONFIGURATION


class NoProcessorNamed(HoldfastError):
    """The command names no processor, and the settings do not have exactly one processor."""

    exit_code = EXIT_BAD_CONFIGURATION


def run(
    target: Annotated[
        str | None,
        typer.Argument(
            help="module:attribute, module, or the name of a processor. Default: the project's only processor.",
            show_default=False,
        ),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Start again after each edit of a Python file.")] = False,
) -> None:
    """Run one processor in the foreground, without a deployment; Ctrl-C ends it."""
    settings = command_settings()
    if reload:
        _run_again_and_again(settings, target)
        return
    definition = _definition(settings, target)
    _refuse_deployed(settings.paths, definition.name)
    if definition.application.broker_address is None:
        _ensure_broker(settings)
    _check_brokers(settings, definition.application.broker_address)
    definition.application.run()


def _definition(settings: Settings, target: str | None) -> ProcessorDefinition:
    from holdfast.processors.application.registration import find_processor, load_processor, load_processors

    if target is None:
        targets = [each.target for each in load_processors(settings)]
        if len(targets) != 1:
            raise NoProcessorNamed(
                f"The settings name {len(targets)} processors: {', '.join(targets) or 'none'}; expected one.",
                action="Name the processor to run, as in `holdfast run my_project.processors:app`.",
            )
        (target,) = targets
    if ":" in target or "." in target:
        return load_processor(settings, target)
    return find_processor(settings, target)


def _refuse_deployed(paths: Paths, processor: str) -> None:
    from holdfast.infra.deploy.marks import read_mark
    from holdfast.processors.engine.serving.endpoint_file import read_endpoint

    mark = read_mark(paths, processor)
    for slot in () if mark is None else mark.slots:
        endpoint = read_endpoint(paths.endpoint(processor, slot))
        if endpoint is not None and endpoint.is_alive:
            raise ProcessorDeployed(
                f"Processor {processor} is deployed and runs as process {endpoint.pid}; another worker would take some "
                "of its partitions.",
                action=f"Stop it with `holdfast stop {processor}`, then run this command again.",
                processor=processor,
                pid=endpoint.pid,
            )


def _ensure_broker(settings: Settings) -> None:
    """Start the embedded broker if the settings name no Kafka cluster and the embedded broker does not run."""
    from holdfast.infra.home import claim_home
    from holdfast.infra.kafka.embedded.broker import embedded_broker, running_broker

    claim_home(settings)
    if settings.kafka.bootstrap_servers is not None or running_broker(settings.paths.kafka) is not None:
        return
    from holdfast.infra.machine import prepare

    console = Console(stderr=True)
    with console.status("starting the broker …") as spinner:
        prepare(settings, ("broker",), lambda line: spinner.update(escape(line)))
        broker = embedded_broker(settings).find_or_start()
    console.print(f"Broker: {broker.bootstrap}. It keeps running; `holdfast down` stops it.", highlight=False)


def _check_brokers(settings: Settings, address: str | None) -> None:
    """Raise an error if the configured cluster can't be used; the embedded broker is not checked."""
    from holdfast.infra.kafka.clients.client import client_config
    from holdfast.infra.kafka.inspection.cluster_facts import check_brokers

    bootstrap = address or settings.kafka.bootstrap_servers
    if bootstrap is not None:
        check_brokers(bootstrap, client_config(settings))


def _run_again_and_again(settings: Settings, target: str | None) -> None:
    from watchfiles import PythonFilter, run_process

    folder = settings.project or Path.cwd()
    words = [sys.executable, "-m", "holdfast.orchestration.cli", "run", *([] if target is None else [target])]
    console = Console(stderr=True)
    console.print(f"Watching {escape(str(folder))}; each edit starts the processor again.", highlight=False)
    run_process(
        folder,
        target=shlex.join(words),
        target_type="command",
        # The home folder is not watched, because it contains copies of the code (releases), which no user edits.
        watch_filter=PythonFilter(ignore_paths=[settings.home], extra_extensions=(".toml",)),
        callback=lambda changes: console.print(f"Edited: {_names(folder, changes)}", highlight=False),
        sigint_timeout=_END_WITHIN_S,
    )


def _names(folder: Path, changes: set[FileChange]) -> str:
    paths = sorted({Path(path) for _, path in changes})
    return escape(", ".join(str(path.relative_to(folder) if path.is_relative_to(folder) else path) for path in paths))
