"""``holdfast spark``: a Spark process that stays up between runs; ``holdfast warehouse``: the tables' catalog."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from holdfast.infra.settings import load_settings
from holdfast.infra.spark.server import find_server, start_server, stop_server
from holdfast.orchestration.commands.options import Json, command_settings, print_json


def add_spark(app: typer.Typer) -> None:
    """Add ``spark`` and ``warehouse`` to the command line."""
    spark = typer.Typer(help="A Spark process on this machine that stays warm between runs.", no_args_is_help=True)
    spark.command()(start)
    spark.command()(stop)
    spark.command()(status)
    app.add_typer(spark, name="spark")
    warehouse = typer.Typer(help="The catalog of the warehouse's tables.", no_args_is_help=True)
    warehouse.callback()(lambda: None)  # otherwise typer makes the only command the group itself
    warehouse.command()(register)
    app.add_typer(warehouse, name="warehouse")


def start(as_json: Json = False) -> None:
    """Start a warm Spark unless one runs. Runs use it when `HOLDFAST_SPARK__MASTER` is `warm`."""
    settings = command_settings()
    with Console(stderr=True).status("starting Spark …"):
        server = start_server(settings)
    shown = {"pid": server.pid, "url": server.url}
    typer.echo(json.dumps(shown) if as_json else f"Spark is warm: process {server.pid}, {server.url}.")


def stop(as_json: Json = False) -> None:
    """Stop the warm Spark."""
    stopped = stop_server(load_settings())
    typer.echo(json.dumps({"stopped": stopped}) if as_json else "Stopped." if stopped else "No warm Spark was running.")


def status(as_json: Json = False) -> None:
    """Show whether a warm Spark runs. Exit code 1: none runs."""
    server = find_server(load_settings())
    if as_json:
        typer.echo(json.dumps(None if server is None else {"pid": server.pid, "url": server.url}))
    else:
        typer.echo("No warm Spark runs." if server is None else f"Spark is warm: process {server.pid}, {server.url}.")
    raise typer.Exit(int(server is None))


def register(as_json: Json = False) -> None:
    """Register tables that the warehouse holds and the catalog lacks, each with its newest metadata."""
    from holdfast.infra.warehouse.catalog import register_tables

    registered = register_tables(command_settings())
    if as_json:
        print_json(registered)
        return
    for table, location in registered.items():
        typer.echo(f"{table}  {location}")
    typer.echo(f"{len(registered)} tables registered.")
