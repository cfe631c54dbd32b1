"""``holdfast rehearse``: restores one partition into a scratch folder, and compares it with the worker's state."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.orchestration.commands.options import Json, command_settings, print_json
from holdfast.processors.lifecycle.ports import now_utc


def rehearse(
    processor: Annotated[str | None, typer.Argument(help="Name of the processor. Default: a random one.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Partition number. Default: a random one.")] = None,
    as_json: Json = False,
) -> None:
    """Restore one partition into a scratch folder, time it, and compare it with the worker. Exit code 1: it failed."""
    from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
    from holdfast.infra.kafka.cluster import KafkaCluster
    from holdfast.orchestration.world import build_world, open_registry
    from holdfast.processors.application.registration import find_processor
    from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
    from holdfast.processors.lifecycle.deploy.present import slots_at_work
    from holdfast.processors.lifecycle.health.rehearsal import NothingToRehearse, Rehearsals, as_document, choose, judge

    settings = command_settings()
    if processor is not None:
        find_processor(settings, processor)
    with closing(open_registry(settings)) as registry:
        cluster = KafkaCluster(bootstrap_servers(settings), client_config=client_config(settings))
        world = build_world(settings, registry)
        rehearsals = Rehearsals(world, cluster, RocksDatabases(), lambda name: slots_at_work(name, world))
        chosen = choose(rehearsals.candidates(processor, partition), now_utc().date().isoformat())
        if chosen is None:
            where = f"{processor or 'any processor'}{'' if partition is None else f', partition {partition}'}"
            raise NothingToRehearse(
                f"No worker with a changelog runs for {where}; a rehearsal compares its restore with a running worker.",
                action="Find the workers that run with `holdfast status`, or start one with "
                f"`holdfast apply deploy {processor or 'PROCESSOR'}`.",
                processor=processor,
            )
        with Console(stderr=True).status(f"{chosen.processor}, partition {chosen.partition}: restoring …"):
            done = rehearsals.rehearse(chosen, "holdfast rehearse")
        passed, text = judge(done, settings.restore_target_s, rehearsals.before(done.processor))
    if as_json:
        print_json({**as_document(done), "passed": passed, "text": text})
    else:
        Console().print(f"[{'green' if passed else 'red'}]{escape(text)}[/]", soft_wrap=True, highlight=False)
    raise typer.Exit(int(not passed))
