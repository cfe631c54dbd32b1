"""``holdfast rehearse``: restore one partition into a scratch folder, and compare it with its owner."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION
from holdfast.infra.kafka.client import bootstrap_servers, client_config
from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.log import configure_logging
from holdfast.infra.settings import load_settings
from holdfast.orchestration.world import build_world, open_registry
from holdfast.processors.engine.state.rocksdb import RocksDatabases
from holdfast.processors.lifecycle.health.rehearsal import RehearsalImpossible, Rehearsals, as_document, choose, judge
from holdfast.processors.lifecycle.ports import now_utc
from holdfast.processors.registration import find_processor

#: ``rehearse`` ends with this code when what was restored is not what the owner has, or it took too long.
FAILED = 1


class NothingToRehearse(RehearsalImpossible):
    """No worker runs that could be compared with."""

    exit_code = EXIT_BAD_CONFIGURATION


def add_rehearse(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(rehearse)


def rehearse(
    processor: Annotated[str | None, typer.Argument(help="The processor; none named: any, by chance.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="The partition; none named: any, by chance.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False,
) -> None:
    """Restore one partition into a scratch folder, time it, compare it with its owner. Exit code 1 when it fails."""
    settings = load_settings()
    configure_logging("WARNING", settings.log_format)
    if processor is not None:
        find_processor(settings, processor)
    registry = open_registry(settings)
    try:
        cluster = KafkaCluster(bootstrap_servers(settings), client_config=client_config(settings))
        opened = Rehearsals(build_world(settings.paths, registry), cluster, RocksDatabases())
        chosen = choose(opened.candidates(processor, partition), now_utc().date().isoformat())
        if chosen is None:
            what = f"{processor or 'any processor'}{'' if partition is None else f', partition {partition},'}"
            raise NothingToRehearse(
                f"No worker of {what} runs with a changelog: there is nobody to compare with.",
                action="Bring it up (holdfast status shows what runs), or name another.",
                processor=processor,
            )
        with Console(stderr=True).status(f"{chosen.processor}, partition {chosen.partition}: restoring …"):
            done = opened.rehearse(chosen, "holdfast rehearse")
        passed, text = judge(done, settings.restore_target_s, opened.before(done.processor))
    finally:
        registry.close()
    if as_json:
        typer.echo(json.dumps({**as_document(done), "passed": passed, "text": text}, indent=2))
    else:
        Console().print(f"[{'green' if passed else 'red'}]{escape(text)}[/]", soft_wrap=True, highlight=False)
    raise typer.Exit(0 if passed else FAILED)
