"""The program ``holdfast``: every command is registered here; ``commands/`` has one module for each group of commands.

Invariants:
    - A ``HoldfastError`` ends as one message with its action and its exit code, never as a traceback.
"""

from __future__ import annotations

import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.infra.kafka.broker import embedded_broker, running_broker
from holdfast.infra.kafka.client import client_config
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.settings import WARM, Settings
from holdfast.infra.spark.server import start_server, stop_server
from holdfast.orchestration import local
from holdfast.orchestration.commands.audit import audit
from holdfast.orchestration.commands.incidents import incidents
from holdfast.orchestration.commands.logs import logs
from holdfast.orchestration.commands.options import Json, command_settings, print_answer, print_json
from holdfast.orchestration.commands.orphans import add_orphans
from holdfast.orchestration.commands.rehearse import rehearse
from holdfast.orchestration.commands.spark import spark, warehouse
from holdfast.orchestration.commands.status import print_services, status
from holdfast.orchestration.commands.top import top
from holdfast.orchestration.commands.verbs import add_verbs
from holdfast.orchestration.commands.webserver import add_webserver
from holdfast.orchestration.world import open_registry
from holdfast.processors.registration import BrokenDefinition, load_processors

app = typer.Typer(
    name="holdfast",
    help="Deploy, check, recover and change the state of stateful Kafka processors.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
add_verbs(app)
for command in (audit, logs, status, top, rehearse):
    app.command()(command)
app.add_typer(incidents, name="incidents")
add_orphans(app)
add_webserver(app)
app.add_typer(spark, name="spark")
app.add_typer(warehouse, name="warehouse")


@app.command()
def demo(
    # slow enough to watch the kill and the recovery, fast enough to finish in minutes
    flights_per_second: Annotated[int, typer.Option(min=1, help="Flights to send per second.")] = 8_000,
    keep: Annotated[bool, typer.Option(help="Leave everything running at the end.")] = False,
) -> None:
    """Process 336,776 real flights, kill a processor while it works, and verify every result."""
    from holdfast.orchestration.demo.run import run_demo

    raise typer.Exit(run_demo(command_settings(), Console(), keep_running=keep, flights_per_second=flights_per_second))


@app.command()
def up(
    port: Annotated[
        int | None, typer.Option(min=1024, max=65535, help="Port of Dagster's UI. Default: 3000, or a free port.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start broker, registry, supervisor and Dagster in the background."""
    settings = command_settings()
    console = Console(stderr=as_json)
    started = _start(settings, console, port)
    if as_json:
        print_json(dict(started))
    else:
        print_services(started, console)
        console.print("All services run in the background; stop them with [bold]holdfast down[/].")


@app.command()
def down(as_json: Json = False) -> None:
    """Stop everything that `holdfast up` and deployments started from this home folder."""
    settings = command_settings()
    stopped = []
    if local.stop(settings, local.WEBSERVER):
        stopped.append("webserver")
    if local.stop(settings, local.DAEMON):
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
    sentence = f"Stopped: {', '.join(stopped)}." if stopped else "Nothing was running."
    print_answer({"stopped": stopped}, sentence, as_json=as_json)


@app.command(name="version")
def show_version() -> None:
    """Print the installed version."""
    try:
        typer.echo(version("holdfast"))
    except PackageNotFoundError:
        typer.echo("not installed")


def main(arguments: list[str] | None = None) -> int:
    """Run one command line (default: that of this process); returns the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script started us in the background. Dagster gives SIGTERM the handler of SIGINT, so a process that we start
        # would ignore both.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = app(args=arguments, standalone_mode=False)
    except HoldfastError as error:
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            print_json({"error": error.as_dict()})
            return error.exit_code
        console = Console(stderr=True)
        console.print(f"[red]{type(error).__name__}[/]: {escape(error.message)}", highlight=False, soft_wrap=True)
        console.print(f"[bold]What to do[/]: {escape(error.action)}", highlight=False, soft_wrap=True)
        return error.exit_code
    except typer.Exit as ended:
        return ended.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except Exception as failure:
        show = getattr(failure, "show", None)  # only errors of the parser have it: wrong usage
        if show is None:
            raise
        show()
        return EXIT_BAD_CONFIGURATION
    return result if isinstance(result, int) else 0


def _start(settings: Settings, console: Console, port: int | None) -> list[tuple[str, str]]:
    """Start every service that does not run; returns (name, address) of each, and of broken definitions."""
    started = [
        ("broken", f"{broken.target}: {broken.error.splitlines()[-1]}")
        for broken in load_processors(settings)
        if isinstance(broken, BrokenDefinition)
    ]
    local.check_configuration(settings)  # before the first service starts
    with console.status("starting the broker …") as spinner:
        if settings.kafka.bootstrap_servers is not None:
            Topics(settings.kafka.bootstrap_servers, client_config(settings), timeout_s=10.0).ping()
            started.append(("kafka", settings.kafka.bootstrap_servers))
        else:
            broker = running_broker(settings.paths.kafka) or embedded_broker(settings).find_or_start()
            started.append(("kafka", broker.bootstrap))
        spinner.update("migrating the registry …")
        open_registry(settings).close()
        started.append(("registry", str(settings.paths.registry) if settings.registry_url is None else "as configured"))
        spinner.update("starting the supervisor …")
        started.append(("supervisor", f"process {open_deployer(settings.paths).start()}"))
        if settings.spark.master == WARM:
            spinner.update("starting Spark …")
            started.append(("spark", start_server(settings).url))
        spinner.update("starting Dagster's daemon …")
        started.append(("daemon", local.start_daemon(settings)))
        spinner.update("starting Dagster's webserver …")
        started.append(("dagster", local.start_webserver(settings, port=port)))
    return started


if __name__ == "__main__":
    sys.exit(main())
