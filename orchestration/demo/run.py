"""Runs the demo from start to end, with the same Dagster assets and jobs that Dagster's UI shows.

    home → broker → registry → supervisor ─┬─► provision → deploy ─┬─► feed ─┬─► caught up
                                           └─► daemon ─────────────┘         │
                                     three times kill -9 → recovery ─────────┤
                                     Spark starts beside the feed ───────────┘

    fed ───────┬─► state and snapshot of processors that were not killed
    caught up ─┼─► state and snapshot of the killed processors ─┬─► compare ─► verify
               ├─► results recomputed with Spark ───────────────┤
               └─► outputs read ────────────────────────────────┘

Invariants:
    - The demo stops every service that it started, also after an error, unless ``keep_running`` is set.
    - If any comparison finds a mismatch, the exit code is 1.
    - One Spark process serves the snapshots and the recomputation.
    - Dagster's daemon runs until the killed processors are recovered; with ``keep_running``, it keeps running.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import dagster as dg
from rich.console import Console
from rich.markup import escape

from holdfast.assets import keys
from holdfast.infra.database.records import Incident
from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_PROCESSING_FAILED
from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
from holdfast.infra.kafka.embedded.broker import embedded_broker
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.log import configure_logging
from holdfast.infra.sample_data.feed import DEPARTURES_TOPIC, FLIGHTS_TOPIC, ORIGINS_TOPIC
from holdfast.infra.sample_data.flights import flights_of
from holdfast.infra.settings import WARM, Settings
from holdfast.infra.setup.java import BRIEF, CODE_CACHE
from holdfast.infra.spark.server import SparkServer, start_server, stop_server
from holdfast.infra.system.process import end_process, start_mark
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.demo.home import demo_settings, prepare_home
from holdfast.orchestration.demo.lag import lag_of
from holdfast.orchestration.demo.publishing import SIDE_BY_SIDE, DemoFailed, Publishing, materialize, result_of
from holdfast.orchestration.demo.terminal import Terminal, command, report, stderr_to
from holdfast.orchestration.demo.verification import (
    Expected,
    Outputs,
    ProcessorVerdict,
    audit_copies,
    await_windows,
    compare_with_spark,
    copies_checked,
    outputs_expected,
    read_outputs,
    verify,
)
from holdfast.orchestration.host import local
from holdfast.orchestration.host.opening import open_quiet
from holdfast.orchestration.world import environment_of
from holdfast.processors.application.registration import ProcessorDefinition, load_processors
from holdfast.processors.audits.comparison import Side
from holdfast.processors.engine.state.fingerprint import Fingerprint

#: Processor -> fraction of the flights after which it is killed. A processor that needs longer to catch up is killed
#: earlier: carriers has groups, windows and tables; rotations has sessions; weather joins two streams.
VICTIMS = {"carriers": 0.1, "rotations": 0.15, "weather": 0.25}
#: Maximum seconds until a killed processor has recovered; and maximum seconds until processors have no lag.
RECOVERY_S = 90.0
CATCH_UP_S = 120.0
_POLL_EVERY_S = 1.0
#: Seconds between two reads of the number of sent flights. This number decides when each processor is killed. The
#: interval is short, because the flights may be sent in a few seconds on a fast machine.
_LOOK_EVERY_S = 0.5
#: Final statuses of a Dagster run.
_ENDED = frozenset({dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED})
#: The topics to which the feed sends each flight once.
_OF_FLIGHTS = (FLIGHTS_TOPIC, DEPARTURES_TOPIC, ORIGINS_TOPIC)
#: Maximum seconds to wait for the end of recovery runs after their incidents are closed. If a run takes longer, the
#: daemon keeps running.
RUNS_END_S = 60.0


T = TypeVar("T")


@dataclass(slots=True)
class Demo:
    """The objects that all steps of one demo use: settings, terminal output, processors and figures."""

    settings: Settings
    terminal: Terminal
    flights_per_second: int
    #: Number of months, from January, whose flights are sent.
    months: int
    keep_running: bool = False
    definitions: tuple[ProcessorDefinition, ...] = ()
    figures: dict[str, str] = field(default_factory=dict)
    _topics: Topics | None = None

    @property
    def flights(self) -> int:
        """The number of flights that are sent."""
        return flights_of(self.months)

    @property
    def topics(self) -> Topics:
        """The client for the cluster's topics. It is created once, because it is used a few times a second."""
        if self._topics is None:
            self._topics = Topics(bootstrap_servers(self.settings), client_config(self.settings))
        return self._topics


def run_demo(
    settings: Settings, console: Console, *, keep_running: bool = False, flights_per_second: int, months: int
) -> int:
    """Run the demo with the flights of the first ``months`` of the year.

    Returns the exit code: 0 if all comparisons agree, 1 if a comparison found a mismatch or a step failed.

    The demo uses the subfolder ``demo`` of the settings' home folder, which must be empty or made by an earlier demo.
    """
    settings = demo_settings(settings)
    # Dagster's definitions, and the processes that the demo starts, read their settings from the environment.
    os.environ.update(environment_of(settings))
    # Broker and Spark run for two minutes only, in which Java's second compiler (C2) costs more time than it saves, so
    # BRIEF switches it off. Java then reserves too little memory for compiled code of Spark, so CODE_CACHE sets it.
    os.environ["JDK_JAVA_OPTIONS"] = f"{BRIEF} {CODE_CACHE}"
    terminal = Terminal(console)
    log = settings.paths.logs / "demo.log"
    began = time.monotonic()
    try:
        emptied = " (emptied: an earlier demo made it)" if prepare_home(settings.paths) else ""
        terminal.line("home", f"{settings.home}{emptied}")
        configure_logging(settings.log_level, settings.log_format)
        # The redirection of stderr ends after all services have ended, because services write to stderr when they end.
        with stderr_to(log), ExitStack() as running:
            demo = Demo(settings, terminal, flights_per_second, months, keep_running)
            verdicts = _act(demo, running)
            mismatches = sum(one.mismatches for one in verdicts)
            report(settings, terminal, demo.figures, verdicts, time.monotonic() - began)
            if keep_running:
                running.pop_all()
                console.print(f"All services run in the background; stop them with `{command(settings, 'down')}`.")
            else:
                with console.status("stopping all services …"):
                    running.close()
        return 0 if mismatches == 0 else EXIT_PROCESSING_FAILED
    except KeyboardInterrupt:
        console.print(f"\n[yellow]Interrupted[/]. All services are stopped. Logs: {settings.paths.logs}")
        return 130
    except HoldfastError as failed:
        console.print(f"\n[red]{type(failed).__name__}[/]: {escape(str(failed))}", highlight=False)
    except Exception as failed:
        console.print(f"\n[red]{type(failed).__name__}[/]: {escape(str(failed)[:2000])}", highlight=False)
    console.print(f"All services are stopped. Logs: {settings.paths.logs} and {settings.paths.kafka}")
    return EXIT_PROCESSING_FAILED


def _act(demo: Demo, running: ExitStack) -> tuple[ProcessorVerdict, ...]:
    registry, daemon = _start(demo, running)
    instance = running.enter_context(open_quiet(demo.settings.paths.dagster))
    publishing = Publishing(demo.settings, instance, _beside(running, "publish", SIDE_BY_SIDE))
    _provision_and_deploy(demo, instance)
    with demo.terminal.step("dagster", "wait until Dagster's daemon works") as say:
        say(f"{daemon.result()}, started beside the deployment")
    spark = _start_spark(demo.settings, running)
    aside = _beside(running, "daemon-stop")
    partitions = demo.topics.describe([FLIGHTS_TOPIC])[FLIGHTS_TOPIC].partitions
    expected = _beside(running, "count").submit(outputs_expected, demo.months, partitions)
    killed = [one for one in demo.definitions if one.name in VICTIMS]
    unharmed = [one for one in demo.definitions if one.name not in VICTIMS]
    with publishing.needed(partial(_end_queries, demo)):
        _feed_and_kill(
            demo,
            registry,
            expected,
            fed=lambda: publishing.begin(unharmed, partial(_await_results, demo, publishing, expected, spark)),
            recovered=lambda: aside.submit(_retire_daemon, demo, publishing),
        )
    publishing.begin(killed)
    if spark is not None:
        with demo.terminal.step("spark", "wait until Spark answers") as say:
            say(f"Spark, process {spark.result().pid}, started beside the feed")
    folder = Path(running.enter_context(TemporaryDirectory(prefix="holdfast-demo-")))
    return _verify(demo, publishing, expected.result(), folder)


def _await_results(
    demo: Demo,
    publishing: Publishing,
    expected: Future[Expected],
    spark: Future[SparkServer] | None,
    definition: ProcessorDefinition,
) -> None:
    """Wait until this processor has no lag and has sent all closed windows, and until Spark has started."""
    # This thread needs its own client, because other threads use the demo's client at the same time.
    topics = Topics(bootstrap_servers(demo.settings), client_config(demo.settings))

    def caught_up() -> bool:
        return publishing.given_up.is_set() or lag_of(topics, [definition]) == 0

    _await(caught_up, CATCH_UP_S, f"{definition.name} to catch up")
    if publishing.given_up.is_set():
        return
    await_windows(topics, [definition], expected.result())
    if spark is not None:
        spark.result()


def _verify(demo: Demo, publishing: Publishing, expected: Expected, folder: Path) -> tuple[ProcessorVerdict, ...]:
    """Compare all results. While tables are written, read the outputs into ``folder`` and recompute the results."""
    # Without a Spark server, only one Spark session can exist. Then the tables are written before the recomputation.
    side_by_side = demo.settings.spark.over_connect
    with (
        ThreadPoolExecutor(max_workers=4, thread_name_prefix="aside") as aside,
        publishing.needed(partial(_end_queries, demo)),
    ):
        outputs = aside.submit(read_outputs, demo.topics, demo.definitions, expected, folder)
        if not side_by_side:
            publishing.tables()

        def published(processor: str) -> Outputs:
            publishing.await_table(processor)
            return outputs.result()[processor]

        comparing = aside.submit(compare_with_spark, demo.settings, demo.months, published)
        began = time.monotonic()
        publishing.show(demo.terminal, demo.definitions)
        tables = publishing.tables()
        words = f"each result equals its changelog and its table: {', '.join(tables)}"
        demo.terminal.line("snapshot", words, time.monotonic() - began)
        auditing = aside.submit(_copies, demo, tables)
        with demo.terminal.step("recompute", "recompute all results with Spark from the file of flights") as say:
            compared = comparing.result()
            keys_and_windows = sum(one.keys for one in compared.values())
            say(f"{keys_and_windows:,} keys and windows recomputed with Spark from the file of flights")
        with demo.terminal.step("verify", "compare stores, changelogs, warehouse and outputs") as say:
            verdicts = verify(auditing.result(), compared, outputs.result(), expected.dead_letters)
            records = sum(one.outputs.records for one in verdicts)
            say(f"{keys_and_windows:,} keys and windows in three copies and {records:,} outputs compared")
    return verdicts


def _start(demo: Demo, running: ExitStack) -> tuple[Registry, Future[str]]:
    """Start broker, registry, supervisor and, in a thread, the daemon. The future ends when the daemon has started."""
    settings, terminal = demo.settings, demo.terminal
    # The imports take seconds, so they run while the broker starts. They also import SQLAlchemy's mapper, and an SQL
    # statement fails while the mapper is only partly imported. So no database may be used before the imports end.
    modules = ("holdfast.orchestration.code_location", "holdfast.infra.warehouse.versions")
    imported = _beside(running, "import").submit(lambda: [import_module(name) for name in modules])
    if settings.kafka.bootstrap_servers is None:
        with terminal.step("broker", "start Apache Kafka") as say:
            broker = embedded_broker(settings)
            running.callback(broker.stop)
            say(f"Apache Kafka on {broker.start().bootstrap}")
    imported.result()
    with terminal.step("registry", "migrate the registry") as say:
        registry = Registry(settings.registry)
        running.callback(registry.close)
        say(f"schema {registry.migrate()}")
    with terminal.step("supervisor", "start supervisord") as say:
        supervisor = open_deployer(settings.paths)
        running.callback(supervisor.stop)
        say(f"supervisord, process {supervisor.start()}")
    running.callback(local.stop, settings, local.DAEMON)
    local.check_configuration(settings)  # also creates Dagster's databases, before the daemon starts
    daemon = _beside(running, "daemon-start").submit(local.start_daemon, settings)
    os.environ["DAGSTER_HOME"] = str(settings.paths.dagster)
    demo.definitions = tuple(one for one in load_processors(settings) if isinstance(one, ProcessorDefinition))
    return registry, daemon


def _beside(running: ExitStack, name: str, threads: int = 1) -> ThreadPoolExecutor:
    """Returns a thread pool that is closed together with ``running``, which also stops the services of the demo.

    At its end, ``running`` first waits for the pool's threads, then stops the services. In another order, a thread
    could start a service after the stop, and this service would keep running.
    """
    return running.enter_context(ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name))


def _start_spark(settings: Settings, running: ExitStack) -> Future[SparkServer] | None:
    """Start the Spark server of the demo in a separate thread; None if the settings name a Spark cluster."""
    if settings.spark.master != WARM:
        return None
    running.callback(stop_server, settings)
    return _beside(running, "spark-start").submit(start_server, settings)


def _end_queries(demo: Demo) -> None:
    """End the running Spark queries by stopping the demo's Spark server; a Spark cluster is not stopped."""
    if demo.settings.spark.master == WARM:
        stop_server(demo.settings)


def _provision_and_deploy(demo: Demo, instance: dg.DagsterInstance) -> None:
    def started(one: ProcessorDefinition) -> None:
        # One changelog asset is enough, because its materialisation creates all topics and changelogs of the processor.
        result = keys.changelog_key(*result_of(one))
        materialize(instance, [result, keys.processor_key(one.name)])

    words = "create topics and changelogs, deploy the processors, and wait until they process all partitions"
    with (
        demo.terminal.step("deploy", words) as say,
        ThreadPoolExecutor(max_workers=len(demo.definitions), thread_name_prefix="deploy") as threads,
    ):
        deploying = [threads.submit(started, one) for one in demo.definitions]
        for each in deploying:
            each.result()
        names = {spec.name for one in demo.definitions for spec in one.topology.topics()}
        topics = len(demo.topics.describe(names))
        say(f"{topics} topics; {', '.join(one.name for one in demo.definitions)} process all partitions")


def _retire_daemon(demo: Demo, publishing: Publishing) -> None:
    """Stop Dagster's daemon after its recovery runs have ended, unless the demo keeps services running.

    The daemon is needed only for the recoveries; its sensors and code server take CPU from processors and Spark.
    """
    if demo.keep_running:
        return
    unfinished = dg.RunsFilter(statuses=[each for each in dg.DagsterRunStatus if each not in _ENDED])

    def ended() -> bool:
        return {run.run_id for run in publishing.instance.get_runs(unfinished)} <= publishing.run_ids

    if wait_until(ended, RUNS_END_S, every_s=1.0):
        local.stop(demo.settings, local.DAEMON)


def _feed_and_kill(
    demo: Demo,
    registry: Registry,
    expected: Future[Expected],
    fed: Callable[[], object],
    recovered: Callable[[], object],
) -> None:
    """Send the flights, kill three processors during the feed, and wait until all records are processed.

    ``fed`` is called after all flights are sent. ``recovered`` is called after the recovery of the killed processors,
    when they may still have lag.
    """
    terminal = demo.terminal
    began = time.monotonic()
    killed: dict[str, datetime] = {}
    bars = dict.fromkeys(("fed", *(one.name for one in demo.definitions)), demo.flights)
    with _feeding(demo) as feeding, terminal.bars(bars) as move:
        while feeding.poll() is None:
            sent = _show(demo, move)
            for victim, share in VICTIMS.items():
                if victim not in killed and sent >= share * demo.flights:
                    killed[victim] = _kill(demo, victim, sent)
            time.sleep(_LOOK_EVERY_S)
        if feeding.returncode != 0 or len(killed) < len(VICTIMS):
            raise DemoFailed(
                f"The feed ended with status {feeding.returncode} after {_fed(demo.topics):,} of {demo.flights:,} "
                "flights.",
                action=f"Read the end of {demo.settings.paths.logs / 'feed.log'}.",
            )
        terminal.line("feed", f"{demo.flights:,} flights sent to {len(_OF_FLIGHTS)} topics", time.monotonic() - began)
        fed()
        for victim in VICTIMS:
            closed = partial(_closed_incident, registry, victim)
            _tell_recovery(demo, _await(closed, RECOVERY_S, f"the recovery of {victim}"), killed[victim])
        recovered()
        caught_up = time.monotonic()
        _await(
            lambda: _show(demo, move) > 0 and lag_of(demo.topics, demo.definitions) == 0,
            CATCH_UP_S,
            "the processors to catch up",
        )
        await_windows(demo.topics, demo.definitions, expected.result())
        terminal.line("caught up", "lag 0 on all partitions", time.monotonic() - caught_up)
    seconds = time.monotonic() - began
    processed = len(demo.definitions) * demo.flights
    demo.figures["flights"] = f"{demo.flights:,}"
    demo.figures["records processed"] = f"{processed:,}"
    demo.figures["rate, feed to caught up"] = f"{processed / seconds:,.0f} records/s"


@contextmanager
def _feeding(demo: Demo) -> Iterator[subprocess.Popen[bytes]]:
    """Context manager that sends the flights in a separate process. If the block ends first, the process is ended."""
    config = {
        "ops": {"send_flights": {"config": {"flights_per_second": demo.flights_per_second, "months": demo.months}}}
    }
    command = [sys.executable, "-m", "dagster", "job", "execute", "-m", "holdfast.orchestration.code_location"]
    log = demo.settings.paths.logs / "feed.log"
    config_file = log.with_suffix(".yaml")
    # Dagster expects a YAML file. JSON is valid YAML.
    config_file.write_text(json.dumps(config))
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*command, "-j", "feed_flights", "--config", str(config_file)],
            cwd=demo.settings.home,
            env={**os.environ, "HOLDFAST_HOME": str(demo.settings.home)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    mark = start_mark(process.pid) or ""
    try:
        yield process
    finally:
        end_process(process.pid, mark, timeout_s=10.0)


def _kill(demo: Demo, victim: str, fed: int) -> datetime:
    paths = demo.settings.paths
    program = open_deployer(paths).programs()[paths.program(victim, "0")]
    if program.pid is None:
        raise DemoFailed(
            f"{victim} has no process to kill; its program is {program.state}.",
            action=f"Read {paths.program_log(victim, '0')}.",
        )
    os.kill(program.pid, signal.SIGKILL)
    demo.terminal.line(
        "kill -9", f"{victim}, process {program.pid}, after {fed / demo.flights:.0%} of the feed", mark="[yellow]⚡[/]"
    )
    return datetime.now(UTC)


def _closed_incident(registry: Registry, victim: str) -> Incident | None:
    incidents = registry.incidents(1, processor=victim)
    return incidents[0] if incidents and not incidents[0].is_open else None


def _tell_recovery(demo: Demo, incident: Incident, killed_at: datetime) -> None:
    victim = incident.processor
    if incident.outcome != "resolved" or incident.closed_at is None:
        raise DemoFailed(
            f"Incident {incident.id} of {victim} ended as {incident.outcome}: {incident.reason}.",
            action=f"Read {demo.settings.paths.program_log(victim, '0')}.",
            incident=incident.id,
        )
    noticed = (incident.opened_at - killed_at).total_seconds()
    seconds = (incident.closed_at - killed_at).total_seconds()
    demo.terminal.line("recovery", f"detected after {noticed:.1f} s; {victim} processed again after {seconds:.1f} s")
    demo.figures[f"recovery of {victim}, from kill -9 to processing all partitions"] = f"{seconds:.1f} s"


def _copies(demo: Demo, checked: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[Side, Fingerprint]]:
    """Processor -> fingerprints (hashes) of the three copies of the processor's store.

    The asset check measured these fingerprints. If the check could not compare all copies, an audit measures them.
    """
    by_processor = {table.split(".")[1]: told for table, told in checked.items()}
    found = copies_checked(by_processor)
    rest = [one for one in demo.definitions if one.name not in found]
    return found | (audit_copies(demo.settings, rest) if rest else {})


def _show(demo: Demo, move: Callable[[str, int], None]) -> int:
    """Update the progress bars from the offsets in Kafka; returns the number of flights sent so far."""
    topics = demo.topics
    fed = _fed(topics)
    move("fed", fed)
    for definition in demo.definitions:
        committed = topics.committed_offsets(definition.name)
        move(definition.name, sum(offset for place, offset in committed.items() if place.topic in _OF_FLIGHTS))
    return fed


def _fed(topics: Topics) -> int:
    return sum(topics.end_offsets(FLIGHTS_TOPIC, committed=True).values())


def _await(look: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Call ``look`` every second until its result is true; returns the result.

    Raises:
        DemoFailed: No result was true within ``timeout_s`` seconds.
    """
    found = wait_until(look, timeout_s, every_s=_POLL_EVERY_S)
    if not found:
        raise DemoFailed(
            f"Waited {timeout_s:.0f} s for {what}.",
            action="Read `dagster-daemon.log` and the processors' logs in the folder `logs`.",
        )
    return found
