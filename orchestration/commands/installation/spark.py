"""``holdfast spark`` controls a Spark process that stays up between runs; ``holdfast warehouse`` mends the catalog."""

from __future__ import annotations

import typer
from rich.console import Console

from holdfast.orchestration.commands.options import Json, command_settings, print_answer, print_json

spark = typer.Typer(help="A Spark process on this machine that stays warm between runs.", no_args_is_help=True)
warehouse = typer.Typer(help="The catalog of the warehouse's tables.", no_args_is_help=True)
# Without this callback, typer would merge a group that has a single command into that command.
warehouse.callback()(lambda: None)


@spark.command()
def start(as_json: Json = False) -> None:
    """Start a warm Spark process unless one runs. Runs use this process if `HOLDFAST_SPARK__MASTER` is `warm`."""
    from holdfast.infra.spark.server import start_server

    settings = command_settings()
    with Console(stderr=True).status("starting Spark …"):
        server = start_server(settings)
    sentence = f"Spark is warm: process {server.pid}, {server.url}."
    print_answer({"pid": server.pid, "url": server.url}, sentence, as_json=as_json)


@spark.command()
def stop(as_json: Json = False) -> None:
    """Stop the warm Spark process."""
    from holdfast.infra.spark.server import stop_server

    stopped = stop_server(command_settings())
    print_answer({"stopped": stopped}, "Stopped." if stopped else "No warm Spark was running.", as_json=as_json)


@spark.command()
def status(as_json: Json = False) -> None:
    """Show whether a warm Spark process runs. Exit code 1: none runs."""
    from holdfast.infra.spark.server import find_server

    server = find_server(command_settings())
    if server is None:
        print_answer(None, "No warm Spark runs.", as_json=as_json)
        raise typer.Exit(1)
    sentence = f"Spark is warm: process {server.pid}, {server.url}."
    print_answer({"pid": server.pid, "url": server.url}, sentence, as_json=as_json)


@spark.command()
def archive(as_json: Json = False) -> None:
    """Archive Spark's Java classes, so that each start of Spark on this machine needs a third less CPU.

    Run this command once after an installation or an update. It takes 50 seconds of CPU, and 210 MB in the cache
    folder.
    """
    from holdfast.infra.spark.class_recording import record_classes

    settings = command_settings()
    with Console(stderr=True).status("archiving Spark's classes, which takes 50 seconds of CPU …"):
        file = record_classes(settings)
    sentence = f"Each Spark on this machine starts with {file} ({file.stat().st_size >> 20} MiB)."
    print_answer({"file": str(file), "bytes": file.stat().st_size}, sentence, as_json=as_json)


@warehouse.command()
def register(as_json: Json = False) -> None:
    """Register tables whose files are in the warehouse but that the catalog lacks, with their newest metadata."""
    from holdfast.infra.warehouse.catalog import register_tables

    registered = register_tables(command_settings())
    if as_json:
        print_json(registered)
        return
    for table, location in registered.items():
        typer.echo(f"{table}  {location}")
    typer.echo(f"{len(registered)} tables registered.")
