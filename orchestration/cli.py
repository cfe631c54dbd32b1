"""The command line: ``holdfast demo | up | down | status | version``.

Invariants:
    - Every error on purpose ends as one red message with its action and its exit code; never as a traceback.
"""

from __future__ import annotations

import json
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.deploy.supervisord import Supervisord
from infra.errors import HoldfastError
from infra.kafka.broker import embedded_broker, running_broker
from infra.kafka.client import client_config
from infra.kafka.topics import Topics
from infra.log import configure_logging
from infra.settings import Settings, load_settings
from orchestration import local
from orchestration.resources import build_world, open_registry
from processors.lifecycle.diagnosis import Limits
from processors.lifecycle.recovery import observe, worst
from processors.registration import BrokenDefinition, load_processors

#: Slow enough to watch, quick enough to finish in minutes.
DEMO_FLIGHTS_PER_SECOND = 8_000

app = typer.Typer(
    name="holdfast",
    help="State lifecycle platform for stateful Kafka processors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def demo(
    flights_per_second: Annotated[int, typer.Option(min=1, help="The pace of the feed.")] = DEMO_FLIGHTS_PER_SECOND,
    keep: Annotated[bool, typer.Option(help="Leave everything running afterwards.")] = False,
) -> None:
    """Run the whole path on real flights, kill a processor on the way, verify."""
    from orchestration.demo.run import run_demo

    raise typer.Exit(run_demo(load_settings(), Console(), keep_running=keep, flights_per_second=flights_per_second))


@app.command()
def up(
    port: Annotated[int | None, typer.Option(min=1024, max=65535, help="The port of Dagster's UI.")] = None,
) -> None:
    """Start broker, registry, supervisor and Dagster, and leave them running."""
    settings = load_settings()
    configure_logging("WARNING", settings.log_format)
    console = Console()
    for name, address in _start(settings, console, port):
        console.print(f"  {name:<12} {address}", highlight=False, soft_wrap=True)
    console.print("All of it keeps running; stop it with [bold]holdfast down[/].")


@app.command()
def down() -> None:
    """Stop all that runs below the home folder."""
    settings = load_settings()
    configure_logging("WARNING", settings.log_format)
    console = Console()
    stopped = []
    if local.stop_webserver(settings):
        stopped.append("webserver")
    if local.stop_daemon(settings):
        stopped.append("daemon")
    supervisor = Supervisord(settings.paths)
    if settings.paths.supervisor.is_dir() and supervisor.pid() is not None:
        supervisor.stop()
        stopped.append("supervisor and processors")
    if running_broker(settings.paths.kafka) is not None:
        embedded_broker(settings).stop()
        stopped.append("broker")
    console.print(f"Stopped: {', '.join(stopped)}." if stopped else "Nothing ran.")


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False) -> None:
    """Show what runs, every processor, and the open incidents."""
    settings = load_settings()
    configure_logging("ERROR", settings.log_format)
    document = _status(settings)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    console = Console()
    for name, value in document["services"].items():
        console.print(f"  {name:<12} {value or 'not running'}", highlight=False, soft_wrap=True)
    table = Table("processor", "wanted", "state", "phase", "lag, records", "processed", "pid")
    for each in document["processors"]:
        cells = (each["processor"], each["desired"], each["diagnosis"])
        rest = ("-" if each[name] is None else str(each[name]) for name in ("phase", "lag", "processed", "pid"))
        table.add_row(*cells, *rest)
    if document["processors"]:
        console.print(table)
    for incident in document["incidents"]:
        console.print(f"  [yellow]incident {incident['id']}[/]: {incident['processor']} {incident['kind']}")


@app.command(name="version")
def show_version() -> None:
    """Print the version."""
    try:
        typer.echo(version("holdfast"))
    except PackageNotFoundError:
        typer.echo("not installed")


def main(arguments: list[str] | None = None) -> int:
    """The entry point; the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a script. Dagster gives SIGTERM the handler of SIGINT: what is started from here
        # could be ended by neither.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = app(args=arguments, standalone_mode=False)
    except HoldfastError as error:
        console = Console(stderr=True)
        console.print(f"[red]{type(error).__name__}[/]: {escape(error.message)}", highlight=False, soft_wrap=True)
        console.print(f"[bold]What to do[/]: {escape(error.action)}", highlight=False, soft_wrap=True)
        return error.exit_code
    except typer.Exit as ended:
        return ended.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except Exception as wrong:
        show = getattr(wrong, "show", None)  # wrong usage: the parser's own error
        if show is None:
            raise
        show()
        return 64
    return result if isinstance(result, int) else 0


def _start(settings: Settings, console: Console, port: int | None) -> list[tuple[str, str]]:
    """Start each part that does not run yet; (name, address) of each."""
    told = [
        ("broken", f"{broken.target}: {broken.error.splitlines()[-1]}")
        for broken in load_processors(settings)
        if isinstance(broken, BrokenDefinition)
    ]
    with console.status("starting the broker …") as spinner:
        if settings.kafka.bootstrap_servers is not None:
            Topics(settings.kafka.bootstrap_servers, client_config(settings), timeout_s=10.0).ping()
            told.append(("kafka", settings.kafka.bootstrap_servers))
        else:
            there = running_broker(settings.paths.kafka) or embedded_broker(settings).start()
            told.append(("kafka", there.bootstrap))
        spinner.update("migrating the registry …")
        open_registry(settings).close()
        told.append(("registry", str(settings.paths.registry) if settings.registry_url is None else "as configured"))
        spinner.update("starting the supervisor …")
        told.append(("supervisor", f"process {Supervisord(settings.paths).start()}"))
        spinner.update("starting Dagster's daemon …")
        told.append(("daemon", local.start_daemon(settings)))
        spinner.update("starting Dagster's webserver …")
        told.append(("dagster", local.start_webserver(settings, port=port)))
    return told


def _status(settings: Settings) -> dict[str, Any]:
    paths = settings.paths
    broker = running_broker(paths.kafka)
    pid = Supervisord(paths).pid() if paths.supervisor.is_dir() else None
    daemon, web = local.running(settings, local.DAEMON), local.running(settings, local.WEBSERVER)
    document: dict[str, Any] = {
        "home": str(paths.home),
        "services": {
            "kafka": settings.kafka.bootstrap_servers or (None if broker is None else broker.bootstrap),
            "supervisor": None if pid is None else f"process {pid}",
            "daemon": None if daemon is None else f"process {daemon.pid}",
            "dagster": None if web is None else web.url,
        },
        "processors": [],
        "incidents": [],
    }
    if settings.registry_url is None and not paths.registry.exists():
        return document
    registry = open_registry(settings)
    try:
        world = build_world(paths, registry)
        limits = Limits(stuck_after_s=settings.stuck_after_s)
        for deployment in registry.deployments():
            seen = observe(deployment.processor, world, limits)
            for slot, each in seen.items():
                said = each.status
                document["processors"].append(
                    {
                        "processor": deployment.processor,
                        "slot": slot,
                        "desired": deployment.desired,
                        "code_version": deployment.code_version,
                        "diagnosis": worst({slot: each.diagnosis}).kind,
                        "sentence": each.diagnosis.sentence,
                        "phase": None if said is None else said.phase,
                        "lag": None if said is None else getattr(said, "lag", None),
                        "processed": None if said is None else getattr(said, "records", {}).get("processed"),
                        "pid": None if said is None else said.pid,
                    }
                )
        document["incidents"] = [
            {"id": each.id, "processor": each.processor, "kind": each.kind, "opened_at": each.opened_at.isoformat()}
            for each in registry.open_incidents()
        ]
    finally:
        registry.close()
    return document


if __name__ == "__main__":
    sys.exit(main())
