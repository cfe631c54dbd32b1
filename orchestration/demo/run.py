"""The demonstration from start to end, through the same Dagster definitions that the UI shows.

    home → broker → registry → supervisor → daemon → provision → deploy → feed ─┬─► caught up → snapshot → verify
                                                     kill -9 at 40 % → recovery ─┘

Invariants:
    - What it starts it stops, whatever happens, unless it is asked to leave it running.
    - A mismatch is never a warning: the exit code is 1.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import dagster as dg
from rich.console import Console
from rich.markup import escape

from holdfast.assets import keys
from holdfast.assets.times import current_key, snapshot_partitions
from holdfast.infra.database.records import Incident
from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.errors import EXIT_PROCESSING_FAILED, HoldfastError
from holdfast.infra.kafka.broker import embedded_broker
from holdfast.infra.kafka.client import bootstrap_servers, client_config
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.log import configure_logging
from holdfast.infra.sample_data.feed import DEPARTURES_TOPIC, FLIGHTS_TOPIC
from holdfast.infra.sample_data.flights import FLIGHTS
from holdfast.infra.settings import PROJECT, Settings
from holdfast.infra.waiting import wait_until
from holdfast.orchestration import local
from holdfast.orchestration.demo.home import prepare_home
from holdfast.orchestration.demo.recomputation import compare_with_spark, updates_expected
from holdfast.orchestration.demo.telling import Bars, Telling, stderr_to
from holdfast.orchestration.demo.verification import Verdict, verify
from holdfast.processors.registration import ProcessorDefinition, load_processors

#: The processor that is killed, and at which share of the feed.
VICTIM = "fleet"
KILL_AT = 0.4
#: How long the sensor and its run may take to bring it back, and the rest to be caught up, seconds.
RECOVERY_S = 90.0
CATCH_UP_S = 120.0
_LOOK_EVERY_S = 0.3


T = TypeVar("T")


class DemoFailed(HoldfastError):
    """The demonstration could not be finished."""


@dataclass(slots=True)
class Demo:
    """One demonstration and what it has found so far."""

    settings: Settings
    telling: Telling
    flights_per_second: int
    definitions: tuple[ProcessorDefinition, ...] = ()
    figures: dict[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> Topics:
        """The cluster's topics."""
        return Topics(bootstrap_servers(self.settings), client_config(self.settings))


def run_demo(settings: Settings, console: Console, *, keep_running: bool = False, flights_per_second: int) -> int:
    """Run the demonstration; the exit code: 0 when every comparison agreed, 1 when one did not or a step failed.

    Args:
        settings: Where everything is; its home folder must be empty or a former demonstration's.
        console: Where to tell of it.
        keep_running: Leave everything running at the end.
        flights_per_second: The feed's pace.
    """
    telling = Telling(console)
    log = settings.paths.logs / "demo.log"
    began = time.monotonic()
    console.print(f"[bold]Holdfast[/]: {FLIGHTS:,} real flights, two processors, one of them killed on the way.")
    try:
        prepared = prepare_home(settings.paths)
        removed = " (a former demonstration's was removed)" if prepared.removed else ""
        telling.line("home", f"{prepared.folder}{removed}")
        configure_logging(settings.log_level, settings.log_format)
        with ExitStack() as running, stderr_to(log):
            demo = Demo(settings, telling, flights_per_second)
            verdict = _act(demo, running)
            _report(demo, verdict, time.monotonic() - began)
            if keep_running:
                running.pop_all()
                console.print("Everything is left running; stop it with [bold]holdfast down[/].")
            else:
                with console.status("stopping what was started …"):
                    running.close()
        return 0 if verdict.mismatches == 0 else EXIT_PROCESSING_FAILED
    except KeyboardInterrupt:
        console.print(f"\n[yellow]Interrupted[/]; what was started is stopped. Logs: {settings.paths.logs}")
        return 130
    except HoldfastError as failed:
        console.print(f"\n[red]{type(failed).__name__}[/]: {escape(str(failed))}", highlight=False)
    except Exception as failed:
        console.print(f"\n[red]{type(failed).__name__}[/]: {escape(str(failed)[:2000])}", highlight=False)
    console.print(f"What was started is stopped. Logs: {settings.paths.logs} and {settings.paths.kafka}")
    return EXIT_PROCESSING_FAILED


def _act(demo: Demo, running: ExitStack) -> Verdict:
    _start(demo, running)
    registry = Registry(demo.settings.registry)
    running.callback(registry.close)
    instance = running.enter_context(dg.DagsterInstance.get())
    _provision_and_deploy(demo, instance)
    _feed_and_kill(demo, registry)
    _snapshot(demo, instance)
    with demo.telling.step("recompute", "compute both results anew with Spark, from the file of flights") as step:
        compared = compare_with_spark(demo.settings)
        step.say(f"{sum(one.keys for one in compared.values()):,} keys, with Spark, from the file of flights")
    with demo.telling.step("verify", "compare stores, changelogs, warehouse and outputs") as step:
        verdict = verify(demo.settings, demo.topics, demo.definitions, compared, updates_expected())
        step.say(f"{verdict.keys:,} keys in three copies and {verdict.outputs:,} outputs compared")
    return verdict


def _start(demo: Demo, running: ExitStack) -> None:
    settings, telling = demo.settings, demo.telling
    if settings.kafka.bootstrap_servers is None:
        with telling.step("broker", "start Apache Kafka") as step:
            broker = embedded_broker(settings)
            running.callback(broker.stop)
            step.say(f"Apache Kafka on {broker.start().bootstrap}")
    with telling.step("registry", "migrate the registry") as step:
        registry = Registry(settings.registry)
        step.say(f"schema {registry.migrate()}")
        registry.close()
    with telling.step("supervisor", "start supervisord") as step:
        supervisor = open_deployer(settings.paths)
        running.callback(supervisor.stop)
        step.say(f"supervisord, process {supervisor.start()}")
    with telling.step("dagster", "start Dagster's daemon") as step:
        running.callback(local.stop_daemon, settings)
        step.say(local.start_daemon(settings))
    os.environ["DAGSTER_HOME"] = str(settings.paths.dagster)
    demo.definitions = tuple(one for one in load_processors(settings) if isinstance(one, ProcessorDefinition))


def _provision_and_deploy(demo: Demo, instance: dg.DagsterInstance) -> None:
    stores = [(one.name, store.name) for one in demo.definitions for store in one.topology.stores]
    with demo.telling.step("provision", "create topics and changelogs") as step:
        _materialize(instance, [keys.changelog_key(processor, store) for processor, store in stores])
        names = {spec.name for one in demo.definitions for spec in one.topology.topics()}
        step.say(f"{len(demo.topics.describe(names))} topics")
    with demo.telling.step("deploy", "deploy the processors and wait until they work") as step:
        _materialize(instance, [keys.processor_key(one.name) for one in demo.definitions])
        step.say(", ".join(one.name for one in demo.definitions) + " work on all partitions")


def _feed_and_kill(demo: Demo, registry: Registry) -> None:
    telling = demo.telling
    began = time.monotonic()
    killed_at: datetime | None = None
    with _feeding(demo) as feeding, telling.bars({"fed": FLIGHTS, "fleet": FLIGHTS, "routes": FLIGHTS}) as bars:
        while feeding.poll() is None:
            fed = _show(demo, bars)
            if killed_at is None and fed >= KILL_AT * FLIGHTS:
                killed_at = _kill(demo, fed)
            time.sleep(_LOOK_EVERY_S)
        if feeding.returncode != 0 or killed_at is None:
            raise DemoFailed(
                f"The feed ended with status {feeding.returncode} after {_fed(demo.topics):,} of {FLIGHTS:,} flights.",
                action=f"Read the end of {demo.settings.paths.logs / 'feed.log'}.",
            )
        telling.line("feed", f"{FLIGHTS:,} flights into two topics", time.monotonic() - began)
        incident = _await(lambda: _closed_incident(registry), RECOVERY_S, "the recovery of the killed processor")
        _tell_recovery(demo, incident, killed_at)
        caught_up = time.monotonic()
        _await(lambda: _show(demo, bars) > 0 and _lag(demo) == 0, CATCH_UP_S, "the processors to catch up")
        telling.line("caught up", "nothing is left to process", time.monotonic() - caught_up)
    seconds = time.monotonic() - began
    demo.figures["records processed"] = f"{2 * FLIGHTS:,}"
    demo.figures["rate, feed to caught up"] = f"{2 * FLIGHTS / seconds:,.0f} records/s"


@contextmanager
def _feeding(demo: Demo) -> Iterator[subprocess.Popen[bytes]]:
    """Run the feed's job as its own process; it is ended when the block is left early."""
    config = {"ops": {"send_flights": {"config": {"flights_per_second": demo.flights_per_second}}}}
    command = [sys.executable, "-m", "dagster", "job", "execute", "-m", "holdfast.orchestration.definitions"]
    log = demo.settings.paths.logs / "feed.log"
    config_file = log.with_suffix(".yaml")
    # Every JSON text is a YAML text.
    config_file.write_text(json.dumps(config))
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*command, "-j", "feed_flights", "--config", str(config_file)],
            cwd=PROJECT,
            env={**os.environ, "HOLDFAST_HOME": str(demo.settings.home)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _kill(demo: Demo, fed: int) -> datetime:
    paths = demo.settings.paths
    program = open_deployer(paths).programs()[paths.program(VICTIM, "0")]
    if program.pid is None:
        raise DemoFailed(
            f"{VICTIM} has no process to kill: it is {program.state}.",
            action=f"Read {paths.program_log(VICTIM, '0')}.",
        )
    os.kill(program.pid, signal.SIGKILL)
    demo.telling.line(
        "kill -9", f"{VICTIM}, process {program.pid}, after {fed / FLIGHTS:.0%} of the feed", mark="[yellow]⚡[/]"
    )
    return datetime.now(UTC)


def _closed_incident(registry: Registry) -> Incident | None:
    incidents = registry.incidents(1, processor=VICTIM)
    return incidents[0] if incidents and not incidents[0].is_open else None


def _tell_recovery(demo: Demo, incident: Incident, killed_at: datetime) -> None:
    if incident.outcome != "resolved" or incident.closed_at is None:
        raise DemoFailed(
            f"Incident {incident.id} of {VICTIM} ended as {incident.outcome}: {incident.reason}.",
            action=f"Read {demo.settings.paths.program_log(VICTIM, '0')}.",
            incident=incident.id,
        )
    noticed = (incident.opened_at - killed_at).total_seconds()
    seconds = (incident.closed_at - killed_at).total_seconds()
    demo.telling.line(
        "recovery", f"the sensor noticed after {noticed:.1f} s; {VICTIM} worked again after {seconds:.1f} s"
    )
    demo.figures["recovery, from kill -9 to working on all partitions"] = f"{seconds:.1f} s"


def _snapshot(demo: Demo, instance: dg.DagsterInstance) -> None:
    stores = [(one.name, store.name) for one in demo.definitions for store in one.topology.stores]
    with demo.telling.step("state", "checkpoint and measure the stores") as step:
        _materialize(instance, [keys.state_key(*store) for store in stores])
        step.say(f"{len(stores)} stores checkpointed; each equals its changelog")
    with demo.telling.step("snapshot", "snapshot the stores with Spark into Iceberg tables") as step:
        _materialize(
            instance,
            [keys.snapshot_key(*store) for store in stores],
            partition_key=current_key(snapshot_partitions(demo.settings.snapshots)),
        )
        step.say(", ".join(f"holdfast.{processor}.{store}" for processor, store in stores))


def _materialize(instance: dg.DagsterInstance, selection: list[dg.AssetKey], partition_key: str | None = None) -> None:
    """Materialise assets of the control room's own definitions, with their checks.

    Raises:
        DemoFailed: One failed, or one of its checks did.
    """
    from holdfast.orchestration.definitions import defs

    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(
        instance=instance, asset_selection=selection, raise_on_error=False, partition_key=partition_key
    )
    if result.success:
        return
    failed = [event for event in result.all_events if event.is_failure and event.is_step_event]
    said = "; ".join(_said(event) for event in failed) or f"run {result.run_id} failed"
    raise DemoFailed(said, action=f"Look at run {result.run_id} in Dagster's UI: `make ui`.", run=result.run_id)


def _said(event: dg.DagsterEvent) -> str:
    error = getattr(event.event_specific_data, "error", None)
    while error is not None and error.cause is not None:
        error = error.cause
    return f"{event.step_key}: {error.message.strip() if error is not None else event.message}"


def _show(demo: Demo, bars: Bars) -> int:
    """Move the bars; how many flights were fed."""
    topics = demo.topics
    fed = _fed(topics)
    bars.move("fed", fed)
    for definition in demo.definitions:
        bars.move(definition.name, sum(topics.committed_offsets(definition.name).values()))
    return fed


def _fed(topics: Topics) -> int:
    return sum(topics.end_offsets(FLIGHTS_TOPIC, committed=True).values())


def _lag(demo: Demo) -> int:
    topics = demo.topics
    ends = sum(sum(topics.end_offsets(name, committed=True).values()) for name in (FLIGHTS_TOPIC, DEPARTURES_TOPIC))
    return ends - sum(sum(topics.committed_offsets(definition.name).values()) for definition in demo.definitions)


def _await(look: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """What ``look`` gives as soon as it is something true.

    Raises:
        DemoFailed: It was not within the time.
    """
    found = wait_until(look, timeout_s, every_s=_LOOK_EVERY_S)
    if not found:
        raise DemoFailed(
            f"Waited {timeout_s:.0f} s for {what}, in vain.", action="Read the logs of processors and daemon."
        )
    return found


def _report(demo: Demo, verdict: Verdict, seconds: float) -> None:
    paths, telling = demo.settings.paths, demo.telling
    telling.table("Figures", {**demo.figures, **verdict.figures(), "whole demonstration": f"{seconds:.0f} s"})
    if verdict.mismatches:
        telling.console.print(f"\n[bold red]{verdict.mismatches} mismatches[/]")
        for sentence in verdict.sentences:
            telling.console.print(f"  {escape(sentence)}", highlight=False)
    else:
        telling.console.print("\n[bold green]Nothing was lost, nothing was doubled.[/]")
    telling.console.print(
        f"\nWhere to look next\n"
        f"  make ui      the graph, its checks and plots, with all that just happened\n"
        f"  make clean   stops everything and removes {paths.home}\n"
        f"  the log of the killed processor: {paths.program_log(VICTIM, '0')}\n"
        f"  the tables: {paths.warehouse}",
        highlight=False,
        soft_wrap=True,
    )
