"""``holdfast spark start | stop | status``: a Spark that stays warm; ``holdfast warehouse register``: its catalog."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from holdfast.infra.log import configure_logging
from holdfast.infra.settings import load_settings
from holdfast.infra.spark.server import find_server, start_server, stop_server

_AS_JSON = typer.Option("--json", help="As one JSON document.")


def add_spark(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    spark = typer.Typer(help="A Spark on this machine that stays warm between runs.", no_args_is_help=True)
    spark.command()(start)
    spark.command()(stop)
    spark.command()(status)
    app.add_typer(spark, name="spark")
    warehouse = typer.Typer(help="The warehouse's catalog.", no_args_is_help=True)
    warehouse.callback()(lambda: None)  # without it, its one command would take the group's name
    warehouse.command()(register)
    app.add_typer(warehouse, name="warehouse")


def start(as_json: Annotated[bool, _AS_JSON] = False) -> None:
    """Start it, if it does not run; runs use it where HOLDFAST_SPARK__MASTER is warm."""
    settings = load_settings()
    configure_logging("WARNING", settings.log_format)
    with Console(stderr=True).status("starting Spark …"):
        server = start_server(settings)
    shown = {"pid": server.pid, "url": server.url}
    typer.echo(json.dumps(shown) if as_json else f"Spark is warm: process {server.pid}, {server.url}.")


def stop(as_json: Annotated[bool, _AS_JSON] = False) -> None:
    """End it."""
    stopped = stop_server(load_settings())
    typer.echo(json.dumps({"stopped": stopped}) if as_json else "Stopped." if stopped else "None ran.")


def status(as_json: Annotated[bool, _AS_JSON] = False) -> None:
    """Whether it runs. Exit code 1 when it does not."""
    server = find_server(load_settings())
    if as_json:
        typer.echo(json.dumps(None if server is None else {"pid": server.pid, "url": server.url}))
    else:
        typer.echo("None runs." if server is None else f"Spark is warm: process {server.pid}, {server.url}.")
    raise typer.Exit(int(server is None))


def register(as_json: Annotated[bool, _AS_JSON] = False) -> None:
    """Make the catalog know the tables that the warehouse holds and it does not, each by its newest metadata."""
    from holdfast.infra.warehouse.catalog import register_tables

    settings = load_settings()
    configure_logging("WARNING", settings.log_format)
    registered = register_tables(settings)
    if as_json:
        typer.echo(json.dumps(registered, indent=2))
        return
    for table, location in registered.items():
        typer.echo(f"{table}  {location}")
    typer.echo(f"{len(registered)} tables registered.")
