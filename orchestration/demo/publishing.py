"""Publishes the results of the demo: runs of Dagster, which write the tables of those processors that are ready.

    processors that nobody killed: no lag, all windows sent ─► run in this process ──────┐
    all others: no lag, all windows sent ────────────────────► run in a process beside ──┴─► tables, and what
                                                                                             their checks measured

Invariants:
    - One run in one process: two at once can deadlock, because the start of a run configures Python's logging again.
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import dagster as dg
import msgspec
from dagster._core.instance.ref import InstanceRef
from dagster._core.utils import make_new_run_id

from holdfast.assets import keys
from holdfast.assets.audits import COPIES_EQUAL
from holdfast.assets.times import current_key, snapshot_partitions
from holdfast.infra.errors import HoldfastError
from holdfast.infra.log import configure_logging
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.demo.children import child
from holdfast.orchestration.demo.terminal import Terminal
from holdfast.orchestration.run_launcher import record_own_process
from holdfast.processors.definitions import RESULTS
from holdfast.processors.registration import ProcessorDefinition, load_processors
from holdfast.processors.snapshots.names import table_name

#: Table -> name of a fingerprint in the metadata of its check ``copies_equal`` -> the fingerprint.
Checked = dict[str, dict[str, str]]


class DemoFailed(HoldfastError):
    """A step of the demo failed or took too long."""


_GIVEN_UP = DemoFailed("The demo was given up.", action="Read the error before this one.")


@dataclass(frozen=True, slots=True)
class Publishing:
    """The runs that publish results; ``threads`` has one worker for each."""

    settings: Settings
    instance: dg.DagsterInstance
    threads: ThreadPoolExecutor
    #: Set when the demo fails or is interrupted: runs end, and none begins.
    given_up: Event = field(default_factory=Event)
    #: The ids of the runs of this process that have begun.
    run_ids: set[str] = field(default_factory=set)
    _runs: list[Future[Checked]] = field(default_factory=list)

    def begin(self, definitions: Sequence[ProcessorDefinition], ready: Callable[[], object]) -> None:
        """Publish the results of these processors in this process when ``ready`` returns."""

        def run() -> Checked:
            ready()
            if self.given_up.is_set():
                raise _GIVEN_UP
            self.run_ids.add(run_id := make_new_run_id())
            return publish(self.settings, self.instance, definitions, run_id)

        self._runs.append(self.threads.submit(run))

    def begin_beside(self, definitions: Sequence[ProcessorDefinition]) -> None:
        """Publish the results of these processors in a process of its own."""
        log = self.settings.paths.logs / "publishing.log"
        answer = log.with_suffix(".json")
        words = ["-m", __name__, str(answer), *(one.name for one in definitions)]

        def run() -> Checked:
            with child(self.settings, words, log) as process:
                while process.poll() is None:
                    if self.given_up.wait(0.5):
                        raise _GIVEN_UP
            if process.returncode != 0:
                names = ", ".join(one.name for one in definitions)
                raise DemoFailed(f"The tables of {names} were not written.", action=f"Read the end of {log}.")
            return msgspec.json.decode(answer.read_bytes(), type=Checked)

        self._runs.append(self.threads.submit(run))

    def tables(self) -> Checked:
        """Each table with its checks' fingerprints, when all runs that were begun have ended.

        Raises:
            DemoFailed: An asset or a check failed.
        """
        return {table: checked for run in self._runs for table, checked in run.result().items()}

    def show(self, terminal: Terminal, definitions: Sequence[ProcessorDefinition]) -> None:
        """Show how many stores are checkpointed and how many are tables, until all are or a run failed."""
        stores = results_of(definitions)
        shown = {"stores": keys.state_key, "tables": keys.snapshot_key}
        with terminal.bars(dict.fromkeys(shown, len(stores))) as move:
            while not all(run.done() for run in self._runs):
                for name, key_of in shown.items():
                    found = self.instance.get_latest_materialization_events([key_of(*store) for store in stores])
                    move(name, sum(event is not None for event in found.values()))
                wait(self._runs, timeout=5.0)


def publish(
    settings: Settings, instance: dg.DagsterInstance, definitions: Sequence[ProcessorDefinition], run_id: str
) -> Checked:
    """Checkpoint, measure and snapshot the results of these processors in one run.

    Raises:
        DemoFailed: An asset or a check failed.
    """
    stores = results_of(definitions)
    selection = [key for store in stores for key in (keys.state_key(*store), keys.snapshot_key(*store))]
    partition = current_key(snapshot_partitions(settings.snapshots))
    result = materialize(instance, selection, run_id, partition_key=partition)
    checked = {
        each.asset_key: {
            name: str(value.value) for name, value in each.metadata.items() if name.endswith("_fingerprint")
        }
        for each in result.get_asset_check_evaluations()
        if each.check_name == COPIES_EQUAL
    }
    return {table_name(*store): checked.get(keys.snapshot_key(*store), {}) for store in stores}


def instance_of(settings: Settings) -> dg.DagsterInstance:
    """Dagster's instance, whose runs in this process leave its output alone: bars are drawn meanwhile."""
    no_capture = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
    overrides = {"compute_logs": no_capture}
    return dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(settings.paths.dagster), overrides=overrides))


def results_of(definitions: Sequence[ProcessorDefinition]) -> list[tuple[str, str]]:
    """Each processor with the store of its result."""
    return [(one.name, RESULTS[one.name]) for one in definitions]


def materialize(
    instance: dg.DagsterInstance, selection: list[dg.AssetKey], run_id: str = "", partition_key: str | None = None
) -> dg.ExecuteInProcessResult:
    """Materialise assets and run their checks; returns the run's result. Without ``run_id``, the run gets a new id.

    Raises:
        DemoFailed: An asset or a check failed.
    """
    from holdfast.orchestration.code_location import defs

    job, run_id = defs.resolve_implicit_global_asset_job_def(), run_id or make_new_run_id()
    record_own_process(instance, run_id, job.name)
    result = job.execute_in_process(
        instance=instance,
        asset_selection=selection,
        raise_on_error=False,
        partition_key=partition_key,
        run_id=run_id,
    )
    if result.success:
        return result
    failed = [event for event in result.all_events if event.is_failure and event.is_step_event]
    causes = "; ".join(_cause(event) for event in failed) or f"Run {result.run_id} failed."
    raise DemoFailed(
        causes, action=f"Start Dagster's UI with `holdfast up` and open run {result.run_id}.", run=result.run_id
    )


def _cause(event: dg.DagsterEvent) -> str:
    error = getattr(event.event_specific_data, "error", None)
    while error is not None and error.cause is not None:
        error = error.cause
    return f"{event.step_key}: {error.message.strip() if error is not None else event.message}"


def _main(answer: str, names: Sequence[str]) -> None:
    """Publish the results of these processors; what the checks measured is written as JSON to the file ``answer``."""
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    known = [one for one in load_processors(settings) if isinstance(one, ProcessorDefinition)]
    with instance_of(settings) as instance:
        tables = publish(settings, instance, [one for one in known if one.name in names], make_new_run_id())
    Path(answer).write_bytes(msgspec.json.encode(tables))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
