"""The program ``holdfast``: every command is registered here; ``commands/`` has one module for each group of commands.

Invariants:
    - A ``HoldfastError`` ends as one message with its action and its exit code, never as a traceback.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

import holdfast
from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, EXIT_INTERRUPTED, HoldfastError
from holdfast.infra.installation import naming_extras
from holdfast.orchestration.commands.options import Json, command_settings, print_answer, print_json
from holdfast.orchestration.lazy_commands import Lazy, lazy_group

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings

_COMMANDS = "holdfast.orchestration.commands"
_LAZIES = (
    Lazy(
        "audit",
        f"{_COMMANDS}.audit:audit",
        "Compare state with its changelog, key by key at the same offset. Exit code 1: they differ.",
    ),
    Lazy(
        "deploy",
        f"{_COMMANDS}.daily:make_deploy",
        "Start the defined version and wait until it processes every partition; roll back if it does not.",
    ),
    Lazy(
        "rollback",
        f"{_COMMANDS}.daily:make_rollback",
        "Run an earlier release with the present state; return to the present release if it fails.",
    ),
    Lazy(
        "restart",
        f"{_COMMANDS}.daily:make_restart",
        "Stop every slot after a commit, and start the deployed release again.",
    ),
    Lazy(
        "restore",
        f"{_COMMANDS}.daily:make_restore",
        "Rebuild local state from the changelogs; `--at`: from the warehouse; `--from-file`: put an export back.",
    ),
    Lazy(
        "stop",
        f"{_COMMANDS}.daily:make_stop",
        "Stop every slot after a commit; recovery does not restart the processor until the next deploy.",
    ),
    Lazy("logs", f"{_COMMANDS}.logs:logs", "Print the last lines of a processor's log."),
    Lazy("status", f"{_COMMANDS}.status:status", "Show services, processors, open incidents and open applies."),
    Lazy(
        "top",
        f"{_COMMANDS}.top:top",
        "Watch state, phase, lag, rate and restore progress of processors; processors in trouble come first.",
    ),
    Lazy(
        "doctor",
        f"{_COMMANDS}.doctor:doctor",
        "Check this machine, the cluster, its rights and the settings. Exit code 1: something must be corrected.",
    ),
    Lazy(
        "produce",
        f"{_COMMANDS}.produce:produce",
        "Send lines of JSON to a topic; a bad line sends nothing.",
    ),
    Lazy(
        "query",
        f"{_COMMANDS}.query:query",
        "Look keys up in the running workers, as of their last commit. Exit code 1: nothing was found.",
    ),
    Lazy(
        "snapshot",
        f"{_COMMANDS}.snapshot:snapshot",
        "Print rows of a store's table, with its version, its offsets and its age.",
    ),
    Lazy(
        "rehearse",
        f"{_COMMANDS}.rehearse:rehearse",
        "Restore one partition into a scratch folder, time it, and compare it with the worker. Exit code 1: it failed.",
    ),
    Lazy(
        "orphans",
        f"{_COMMANDS}.orphans:orphans",
        "List topics, groups, local state, checkpoints and tables that no registered store owns.",
    ),
    Lazy(
        "plan",
        f"{_COMMANDS}.verbs:make_plan",
        "List the stages of a verb; change nothing. Exit codes: 0 nothing to do, 2 changes pending, 3 refused.",
    ),
    Lazy(
        "explain",
        f"{_COMMANDS}.verbs:make_explain",
        "Explain a verb: its stages, its effects and how to undo it. Exit codes: 0 nothing to do, 2 changes pending, "
        "3 refused.",
    ),
    Lazy("apply", f"{_COMMANDS}.verbs:make_apply", "Carry out a verb; list, resume and abandon applies."),
    Lazy("registry", f"{_COMMANDS}.verbs:make_registry", "Correct the registry."),
    Lazy(
        "schema",
        f"{_COMMANDS}.schema:schema",
        "Print the JSON Schema of a command's `--json`; without a command, list those that have one.",
    ),
    Lazy("incidents", f"{_COMMANDS}.incidents:incidents", "List, show, acknowledge and retry incidents."),
    Lazy("spark", f"{_COMMANDS}.spark:spark", "A Spark process on this machine that stays warm between runs."),
    Lazy("warehouse", f"{_COMMANDS}.spark:warehouse", "The catalog of the warehouse's tables."),
    Lazy(
        "webserver",
        f"{_COMMANDS}.webserver:webserver",
        "Serve Dagster's UI in the foreground, behind checks of host, origin and token; takes dagster-webserver's "
        "options.",
        foreign_options=True,
    ),
)
app = typer.Typer(
    name="holdfast",
    cls=lazy_group(*_LAZIES),
    help="Deploy, check, recover and change the state of stateful Kafka processors.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of every command line."""


@app.command()
def demo(
    # slow enough to watch the kill and the recovery, fast enough to finish in minutes
    flights_per_second: Annotated[int, typer.Option(min=1, help="Flights to send per second.")] = 8_000,
    keep: Annotated[bool, typer.Option(help="Leave everything running at the end.")] = False,
) -> None:
    """Process 336,776 real flights, kill a processor while it works, and verify every result."""
    from holdfast.infra.machine import JAR_SETS, prepare
    from holdfast.infra.sample_data.flights import flights_file
    from holdfast.orchestration.demo.run import run_demo

    settings, console = command_settings(), Console()
    flights_file()  # what is missing is told before anything starts
    with console.status("preparing this machine …"):
        prepare(settings, JAR_SETS, lambda line: console.print(f"[dim]{escape(line)}[/]", highlight=False))
    raise typer.Exit(run_demo(settings, console, keep_running=keep, flights_per_second=flights_per_second))


@app.command()
def up(
    port: Annotated[
        int | None, typer.Option(min=1024, max=65535, help="Port of Dagster's UI. Default: 3000, or a free port.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start broker, registry, supervisor and Dagster in the background."""
    from holdfast.orchestration.commands.status import print_services

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
    from holdfast.infra.deploy.deployer import open_deployer
    from holdfast.infra.kafka.broker import embedded_broker, running_broker
    from holdfast.infra.spark.server import stop_server
    from holdfast.orchestration import local

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
def show_version(as_json: Json = False) -> None:
    """Print the installed version."""
    print_answer({"version": holdfast.__version__}, holdfast.__version__, as_json=as_json)


def main(arguments: list[str] | None = None) -> int:
    """Run one command line (default: that of this process); returns the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script started us in the background. Dagster gives SIGTERM the handler of SIGINT, so a process that we start
        # would ignore both.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with naming_extras():
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
        return EXIT_INTERRUPTED
    except Exception as failure:
        show = getattr(failure, "show", None)  # only errors of the parser have it: wrong usage
        if show is None:
            raise
        show()
        return EXIT_BAD_CONFIGURATION
    return result if isinstance(result, int) else 0


def _start(settings: Settings, console: Console, port: int | None) -> list[tuple[str, str]]:
    """Start every service that does not run; returns (name, address) of each, and of broken definitions."""
    from holdfast.infra.deploy.deployer import open_deployer
    from holdfast.infra.kafka.broker import embedded_broker, running_broker
    from holdfast.infra.kafka.client import client_config
    from holdfast.infra.kafka.topics import Topics
    from holdfast.infra.machine import prepare
    from holdfast.infra.settings import WARM
    from holdfast.infra.spark.server import start_server
    from holdfast.orchestration import local
    from holdfast.orchestration.world import open_registry
    from holdfast.processors.registration import BrokenDefinition, load_processors

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
            prepare(settings, ("broker",), lambda line: spinner.update(escape(line)))
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
