"""The command line: ``holdfast demo | up | down | status | top | incidents | plan | explain | apply | audit | logs |
rehearse | orphans | spark | warehouse | version``.

Invariants:
    - Every error on purpose ends as one red message with its action and its exit code; never as a traceback.
"""

from __future__ import annotations

import json
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.broker import embedded_broker, running_broker
from holdfast.infra.kafka.client import client_config
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.log import configure_logging
from holdfast.infra.settings import WARM, Settings, load_settings
from holdfast.infra.spark.server import start_server, stop_server
from holdfast.orchestration import local
from holdfast.orchestration.commands.incidents import add_incidents
from holdfast.orchestration.commands.looking import add_looking
from holdfast.orchestration.commands.orphans import add_orphans
from holdfast.orchestration.commands.rehearse import add_rehearse
from holdfast.orchestration.commands.spark import add_spark
from holdfast.orchestration.commands.status import add_status
from holdfast.orchestration.commands.top import add_top
from holdfast.orchestration.commands.verbs import add_verbs
from holdfast.orchestration.resources import open_registry
from holdfast.processors.registration import BrokenDefinition, load_processors

#: Slow enough to watch, quick enough to finish in minutes.
DEMO_FLIGHTS_PER_SECOND = 8_000

app = typer.Typer(
    name="holdfast",
    help="State lifecycle platform for stateful Kafka processors.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
add_verbs(app)
add_looking(app)
add_status(app)
add_top(app)
add_incidents(app)
add_rehearse(app)
add_orphans(app)
add_spark(app)


@app.command()
def demo(
    flights_per_second: Annotated[int, typer.Option(min=1, help="The pace of the feed.")] = DEMO_FLIGHTS_PER_SECOND,
    keep: Annotated[bool, typer.Option(help="Leave everything running afterwards.")] = False,
) -> None:
    """Run the whole path on real flights, kill a processor on the way, verify."""
    from holdfast.orchestration.demo.run import run_demo

    raise typer.Exit(run_demo(load_settings(), Console(), keep_running=keep, flights_per_second=flights_per_second))


@app.command()
def up(
    port: Annotated[int | None, typer.Option(min=1024, max=65535, help="The port of Dagster's UI.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False,
) -> None:
    """Start broker, registry, supervisor and Dagster, and leave them running."""
    settings = load_settings()
    configure_logging("WARNING", settings.log_format)
    console = Console(stderr=as_json)
    started = _start(settings, console, port)
    if as_json:
        typer.echo(json.dumps(dict(started), indent=2))
        return
    for name, address in started:
        console.print(f"  {name:<12} {address}", highlight=False, soft_wrap=True)
    console.print("All of it keeps running; stop it with [bold]holdfast down[/].")


@app.command()
def down(as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False) -> None:
    """Stop all that runs below the home folder."""
    settings = load_settings()
    configure_logging("WARNING", settings.log_format)
    console = Console()
    stopped = []
    if local.stop_webserver(settings):
        stopped.append("webserver")
    if local.stop_daemon(settings):
        stopped.append("daemon")
    supervisor = open_deployer(settings.paths)
    if supervisor.pid() is not None:
        supervisor.stop()
        stopped.append("supervisor and processors")
    if stop_server(settings):
        stopped.append("warm Spark")
    if running_broker(settings.paths.kafka) is not None:
        embedded_broker(settings).stop()
        stopped.append("broker")
    if as_json:
        typer.echo(json.dumps({"stopped": stopped}))
        return
    console.print(f"Stopped: {', '.join(stopped)}." if stopped else "Nothing ran.")


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
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            typer.echo(json.dumps({"error": error.as_dict()}, indent=2))
            return error.exit_code
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
    local.check_configuration(settings)  # before anything runs that somebody would have to stop again
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
        told.append(("supervisor", f"process {open_deployer(settings.paths).start()}"))
        if settings.spark.master == WARM:
            spinner.update("starting Spark …")
            told.append(("spark", start_server(settings).url))
        spinner.update("starting Dagster's daemon …")
        told.append(("daemon", local.start_daemon(settings)))
        spinner.update("starting Dagster's webserver …")
        told.append(("dagster", local.start_webserver(settings, port=port)))
    return told


if __name__ == "__main__":
    sys.exit(main())
