"""The program ``holdfast``. This module registers every command; the modules in ``commands/`` implement the commands.

Invariants:
    - A ``HoldfastError`` is printed as one message with the action to take, never as a traceback. The exit code is
      the error's ``exit_code``.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

import holdfast
from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION, EXIT_INTERRUPTED
from holdfast.infra.installation import naming_extras
from holdfast.orchestration.commands.lazy import Lazy, lazy_group
from holdfast.orchestration.commands.options import Json, command_settings, print_answer, print_json

_COMMANDS = "holdfast.orchestration.commands"
_LAZIES = (
    Lazy(
        "audit",
        f"{_COMMANDS}.reports.audit:audit",
        "Compare state with its changelog, key by key at the same offset. Exit code 1: they differ.",
    ),
    Lazy(
        "deploy",
        f"{_COMMANDS}.changes.daily:make_deploy",
        "Start the defined version and wait until it processes every partition; roll back if it does not.",
    ),
    Lazy(
        "rollback",
        f"{_COMMANDS}.changes.daily:make_rollback",
        "Run an earlier release with the present state; return to the present release if it fails.",
    ),
    Lazy(
        "restart",
        f"{_COMMANDS}.changes.daily:make_restart",
        "Stop every slot after a commit, and start the deployed release again.",
    ),
    Lazy(
        "scale",
        f"{_COMMANDS}.changes.daily:make_scale",
        "Run the deployed version in another number of workers; their state is fetched before partitions move.",
    ),
    Lazy(
        "restore",
        f"{_COMMANDS}.changes.daily:make_restore",
        "Rebuild local state from the changelogs; `--at`: from the warehouse; `--from-file`: put an export back.",
    ),
    Lazy(
        "stop",
        f"{_COMMANDS}.changes.daily:make_stop",
        "Stop every slot after a commit; recovery does not restart the processor until the next deploy.",
    ),
    Lazy(
        "erase",
        f"{_COMMANDS}.changes.daily:make_erase",
        "Delete every copy of a message key, prove that each is gone, and record a certificate.",
    ),
    Lazy(
        "config",
        f"{_COMMANDS}.installation.config:config",
        "Show each setting, where its value came from, and what it means; secrets are masked.",
    ),
    Lazy(
        "init",
        f"{_COMMANDS}.installation.init:init",
        "Make a new project: a processor, its test, Dagster's definitions and settings.",
    ),
    Lazy("logs", f"{_COMMANDS}.installation.logs:logs", "Print the last lines of a processor's log."),
    Lazy(
        "run",
        f"{_COMMANDS}.installation.run:run",
        "Run one processor in the foreground, without a deployment; Ctrl-C ends it.",
    ),
    Lazy(
        "status",
        f"{_COMMANDS}.reports.status:status",
        "Show what runs, and for all that is not green the reason and the next action. Exit code 1: something is red.",
    ),
    Lazy(
        "history",
        f"{_COMMANDS}.reports.history:history",
        "List a processor's applies, incidents, rehearsals and Dagster runs, newest first.",
    ),
    Lazy(
        "top",
        f"{_COMMANDS}.reports.top:top",
        "Watch state, phase, lag, rate and restore progress of processors; processors in trouble come first.",
    ),
    Lazy(
        "doctor",
        f"{_COMMANDS}.installation.doctor:doctor",
        "Check this machine, the cluster, its rights and the settings. Exit code 1: something must be corrected.",
    ),
    Lazy(
        "produce",
        f"{_COMMANDS}.records.produce:produce",
        "Send lines of JSON to a topic; a bad line sends nothing.",
    ),
    Lazy(
        "consume",
        f"{_COMMANDS}.records.consume:consume",
        "Print committed records of a topic, the newest ones or the first from a place or a time on.",
    ),
    Lazy(
        "dead-letters",
        f"{_COMMANDS}.changes.dead_letters:dead_letters",
        "List a processor's dead letters with their reasons; `--replay` plans and applies sending them again.",
    ),
    Lazy(
        "query",
        f"{_COMMANDS}.reports.query:query",
        "Look keys up in the running workers, as of their last commit. Exit code 1: nothing was found.",
    ),
    Lazy(
        "snapshot",
        f"{_COMMANDS}.reports.snapshot:snapshot",
        "Print rows of a store's table, with its version, its offsets and its age.",
    ),
    Lazy(
        "rehearse",
        f"{_COMMANDS}.reports.rehearse:rehearse",
        "Restore one partition into a scratch folder, time it, and compare it with the worker. Exit code 1: it failed.",
    ),
    Lazy(
        "orphans",
        f"{_COMMANDS}.reports.orphans:orphans",
        "List topics, groups, local state, checkpoints and tables that no registered store owns.",
    ),
    Lazy(
        "erased",
        f"{_COMMANDS}.reports.erased:erased",
        "Print the certificates of erased keys. Exit code 1: a key has state again, or a certificate proves nothing.",
    ),
    Lazy(
        "plan",
        f"{_COMMANDS}.changes.verbs:make_plan",
        "List the stages of a verb; change nothing. Exit codes: 0 nothing to do, 2 changes pending, 3 refused.",
    ),
    Lazy(
        "explain",
        f"{_COMMANDS}.changes.verbs:make_explain",
        "Explain a verb: its stages, its effects and how to undo it. Exit codes: 0 nothing to do, 2 changes pending, "
        "3 refused.",
    ),
    Lazy("apply", f"{_COMMANDS}.changes.verbs:make_apply", "Carry out a verb; list, resume and abandon applies."),
    Lazy("registry", f"{_COMMANDS}.changes.verbs:make_registry", "Back up, restore or correct the registry."),
    Lazy(
        "schema",
        f"{_COMMANDS}.records.schema:schema",
        "Print the JSON Schema of a command's `--json`; without a command, list those that have one.",
    ),
    Lazy("incidents", f"{_COMMANDS}.reports.incidents:incidents", "List, show, acknowledge and retry incidents."),
    Lazy(
        "spark",
        f"{_COMMANDS}.installation.spark:spark",
        "A Spark process on this machine that stays warm between runs.",
    ),
    Lazy("warehouse", f"{_COMMANDS}.installation.spark:warehouse", "The catalog of the warehouse's tables."),
    Lazy(
        "daemon",
        f"{_COMMANDS}.installation.daemon:daemon",
        "Run Dagster's daemon in the foreground: schedules, sensors and runs; takes the options of dagster-daemon run.",
        foreign_options=True,
    ),
    Lazy(
        "webserver",
        f"{_COMMANDS}.installation.webserver:webserver",
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
    context: typer.Context,
    project: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The project's folder. Default: the nearest one upwards.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a setting, as in --set memory_max_mb=512; repeatable."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Handles the options before the command's name, for example ``holdfast --project FOLDER status``."""
    if project is not None or values:
        # Imported only if `--project` or `--set` is given, because the import loads all settings.
        from holdfast.infra.settings.flags import take_flags

        context.call_on_close(take_flags(project, values or []))


@app.command()
def demo(
    # At this default rate, a user can watch a kill and the recovery, and the demo ends within minutes.
    flights_per_second: Annotated[
        int, typer.Option("--flights-per-second", min=1, metavar="N", help="Flights to send per second.")
    ] = 12_000,
    months: Annotated[
        int,
        typer.Option(
            min=1,
            max=12,
            metavar="N",
            help="The first months of 2013, whose flights are sent: 2 have 51,955 flights, 12 have 336,776.",
        ),
    ] = 2,
    keep: Annotated[
        bool, typer.Option(help="Leave all services running at the end, and print the command that stops them.")
    ] = False,
) -> None:
    """Process real flights, kill processors while they work, and verify every result.

    The demo writes to the folder `demo` in the home folder, by default `.holdfast/demo`.

    To stop the services that `--keep` leaves running: `HOLDFAST_HOME=.holdfast/demo holdfast down`.
    """
    from rich.console import Console
    from rich.markup import escape

    from holdfast.infra.machine import JAR_SETS, prepare
    from holdfast.infra.sample_data.flights import flights_file, flights_of

    settings, console = command_settings(), Console()
    # If the package with the flights is missing, this call raises the error before any service starts.
    flights_file()
    console.print(
        f"[bold]Holdfast[/]: seven processors, {flights_of(months):,} real flights, three kill -9 on the way."
    )
    with console.status("preparing this machine …"):
        prepare(settings, JAR_SETS, lambda line: console.print(f"[dim]{escape(line)}[/]", highlight=False))
        # imported only for this command, because importing Dagster takes seconds
        from holdfast.orchestration.demo.run import run_demo

    raise typer.Exit(
        run_demo(settings, console, keep_running=keep, flights_per_second=flights_per_second, months=months)
    )


@app.command()
def up(
    port: Annotated[
        int | None, typer.Option(min=1024, max=65535, help="Port of Dagster's UI. Default: 3000, or a free port.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start broker, registry, supervisor and Dagster in the background, and deploy the project's processors."""
    from rich.console import Console

    from holdfast.orchestration.commands.installation.up import start_all

    settings = command_settings()
    raise typer.Exit(start_all(settings, Console(stderr=as_json), port, as_json=as_json))


@app.command()
def down(as_json: Json = False) -> None:
    """Stop all services and processors that were started from this home folder."""
    from holdfast.infra.deploy.deployer import open_deployer
    from holdfast.infra.kafka.embedded.broker import stop_broker
    from holdfast.infra.spark.server import stop_server
    from holdfast.orchestration.host import local

    settings = command_settings()
    stopped = []
    if local.stop(settings, local.WEBSERVER):
        stopped.append("webserver")
    if local.stop(settings, local.DAEMON):
        stopped.append("daemon")
    if open_deployer(settings.paths).stop():
        stopped.append("supervisor and processors")
    if stop_server(settings):
        stopped.append("warm Spark")
    if stop_broker(settings.paths.kafka):
        stopped.append("broker")
    sentence = f"Stopped: {', '.join(stopped)}." if stopped else "Nothing was running."
    print_answer({"stopped": stopped}, sentence, as_json=as_json)


@app.command(name="version")
def show_version(as_json: Json = False) -> None:
    """Print the installed version of Holdfast."""
    print_answer({"version": holdfast.__version__}, holdfast.__version__, as_json=as_json)


#: Maps each error type of pydantic to a text about the broken rule. In the text, ``{le}`` and ``{ge}`` are replaced by
#: the limits that pydantic reports in the error's ``ctx``.
_RULES = {"less_than_equal": "at most {le}", "greater_than_equal": "at least {ge}", "int_parsing": "a whole number"}


#: Number of new Python objects before the first garbage collection. An everyday command creates fewer objects.
_OBJECTS_FREE = 500_000


class ArgumentsInvalid(BadConfiguration):
    """The command line has an argument, an option or a value that the command does not accept."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code. ``arguments=None`` means this process's own arguments."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # If a shell script starts this process in the background, the process ignores SIGINT. Dagster uses the handler
        # of SIGINT for SIGTERM too, so Dagster's processes would ignore both signals and never stop.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        with naming_extras(), _rare_collections(whole_process=arguments is None):
            result = app(args=arguments, standalone_mode=False)
    except HoldfastError as error:
        if as_json:
            print_json({"error": error.as_dict()})
            return error.exit_code
        # Imported only for an error, because commands that print lines of text or JSON need no tables and colours.
        from rich.console import Console
        from rich.markup import escape

        console = Console(stderr=True)
        console.print(f"[red]{type(error).__name__}[/]: {escape(error.message)}", highlight=False, soft_wrap=True)
        console.print(f"[bold]What to do[/]: {escape(error.action)}", highlight=False, soft_wrap=True)
        return error.exit_code
    except typer.Exit as ended:
        return ended.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except Exception as failure:
        show = getattr(failure, "show", None)  # Only errors of the command-line parser have the method ``show``.
        if show is None:
            raise
        _name_the_value(failure)
        if as_json:
            print_json({"error": _wrong_usage(failure).as_dict()})
        else:
            show()
        return EXIT_BAD_CONFIGURATION
    return result if isinstance(result, int) else 0


@contextmanager
def _rare_collections(*, whole_process: bool) -> Iterator[None]:
    """Context manager in which the first garbage collection waits for ``_OBJECTS_FREE`` new objects instead of 700.

    Imports create most objects of a short command, and these objects are no garbage. To search them would take a
    twentieth of the command's CPU time. After the first collection, Python's own threshold applies again, because a
    command may run for long.

    With ``whole_process``, the collection at the end of the process is left out, too. It would take a fifth of the CPU
    time. Objects without cycles, for example files and connections, are still closed as usual.
    """
    former = gc.get_threshold()

    def restore(phase: str = "stop", _facts: object = None) -> None:
        if phase == "stop" and restore in gc.callbacks:
            gc.callbacks.remove(restore)
            gc.set_threshold(*former)

    gc.callbacks.append(restore)
    gc.set_threshold(_OBJECTS_FREE, *former[1:])
    try:
        yield
    finally:
        restore()
        if whole_process:
            gc.freeze()


def _name_the_value(failure: Any) -> None:
    """Add the refused value, and the help text of its option or argument, to a command-line parser's error.

    Newer versions of Typer check values with pydantic, and then their message does not contain the refused value. The
    message of older versions contains the value.
    """
    errors, meaning = getattr(failure.__cause__, "errors", None), getattr(getattr(failure, "param", None), "help", None)
    if errors is not None:
        first = errors()[0]
        theirs = first["msg"].partition(", unable to parse")[0].removeprefix("Input should be ")
        rule = _RULES.get(first["type"], theirs).format(**first.get("ctx", {}))
        failure.message = f"{first['input']!r} was given, expected {rule}."
    if failure.message and meaning:
        failure.message = f"{failure.message} {meaning}"


def _wrong_usage(failure: Any) -> ArgumentsInvalid:
    """Converts an error of the command-line parser to ``ArgumentsInvalid``.

    The new error names the ``--help`` command that explains the arguments.
    """
    words, context = [], getattr(failure, "ctx", None)
    while context is not None and context.parent is not None:
        words.append(str(context.info_name))
        context = context.parent
    command = " ".join(["holdfast", *reversed(words)])
    return ArgumentsInvalid(failure.format_message(), action=f"Read `{command} --help`.")


if __name__ == "__main__":
    sys.exit(main())
