"""Publishes the demo's results: for each processor, one Dagster run writes the result store to a warehouse table.

    processors that nobody killed: no lag, all windows sent ─┬─► run ─┐
                                                             ├─► run ─┤
    all others: no lag, all windows sent ────────────────────┼─► run ─┼─► tables and what their checks measured
                                                             └─► run ─┘

Invariants:
    - At most ``SIDE_BY_SIDE`` runs are active at once, because all runs share one Spark and this machine's cores.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from uuid import uuid4

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.audits import COPIES_EQUAL
from holdfast.assets.times import current_key, snapshot_partitions
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import Settings
from holdfast.orchestration.demo.terminal import Terminal
from holdfast.orchestration.host.run_launcher import record_own_process
from holdfast.orchestration.jobs.failures import own_words
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.definitions import RESULTS
from holdfast.processors.snapshots.names import table_name

#: Maximum number of publishing runs that are active at once.
SIDE_BY_SIDE = 4

#: Table -> its fingerprints (hashes of all keys and values), which the asset check ``copies_equal`` measured. The keys
#: of the inner mapping are names in the check's metadata, such as ``store_fingerprint``.
Checked = dict[str, dict[str, str]]


class DemoFailed(HoldfastError):
    """A step of the demo failed or took too long."""


_GIVEN_UP = DemoFailed("The demo ended before its tables were written.", action="Run `holdfast demo` again.")


@dataclass(frozen=True, slots=True)
class Publishing:
    """The Dagster runs that publish results, at most ``SIDE_BY_SIDE`` at a time, in the order given to ``begin``."""

    settings: Settings
    instance: dg.DagsterInstance
    #: Executes the runs; has ``SIDE_BY_SIDE`` threads.
    threads: ThreadPoolExecutor
    #: The Dagster ids of the runs that were started.
    run_ids: set[str] = field(default_factory=set)
    #: Set if the demo failed or was interrupted; after that, no further run starts.
    given_up: Event = field(default_factory=Event)
    #: Processor -> the future with the result of its publishing run.
    _runs: dict[str, Future[Checked]] = field(default_factory=dict)

    def begin(
        self,
        definitions: Sequence[ProcessorDefinition],
        ready: Callable[[ProcessorDefinition], object] = lambda _: None,
    ) -> None:
        """Start a publishing run for each of these processors, and return at once.

        A processor's run starts when ``ready(processor)`` has returned.
        """

        def run(definition: ProcessorDefinition) -> Checked:
            ready(definition)
            if self.given_up.is_set():
                raise _GIVEN_UP
            return self._publish(definition)

        self._runs.update({each.name: self.threads.submit(run, each) for each in definitions})

    @contextmanager
    def needed(self, end_runs: Callable[[], object]) -> Iterator[None]:
        """Context manager for the steps of the demo that need the tables.

        If the block fails or is interrupted, no further publishing run starts, and ``end_runs`` is called. The function
        ``end_runs`` must end the active runs. Otherwise a wait for their tables would fail only after minutes.
        """
        try:
            yield
        except BaseException:
            self.given_up.set()
            for run in self._runs.values():
                run.cancel()
            end_runs()
            raise

    def await_table(self, processor: str) -> None:
        """Wait until this processor's result table exists. Raises the same errors as the method ``tables``."""
        self._runs[processor].result()

    def tables(self) -> Checked:
        """Wait for all started runs; returns table -> fingerprints (hashes of its content) from its check's metadata.

        Raises:
            DemoFailed: An asset or a check failed.
            concurrent.futures.CancelledError: The demo failed or was interrupted before a run started.
        """
        return {table: checked for run in self._runs.values() for table, checked in run.result().items()}

    def show(self, terminal: Terminal, definitions: Sequence[ProcessorDefinition]) -> None:
        """Show progress bars for checkpointed stores and published tables, until all runs have ended."""
        stores = [result_of(one) for one in definitions]
        shown = {"stores": keys.state_key, "tables": keys.snapshot_key}
        with terminal.bars(dict.fromkeys(shown, len(stores))) as move:
            while not all(run.done() for run in self._runs.values()):
                for name, key_of in shown.items():
                    found = self.instance.get_latest_materialization_events([key_of(*store) for store in stores])
                    move(name, sum(event is not None for event in found.values()))
                wait(self._runs.values(), timeout=5.0)

    def _publish(self, definition: ProcessorDefinition) -> Checked:
        """Checkpoint a processor's result store, run its checks and publish its table, all in one Dagster run."""
        result = result_of(definition)
        snapshot = keys.snapshot_key(*result)
        selection = [keys.state_key(*result), snapshot]
        partition = current_key(snapshot_partitions(self.settings.snapshots))
        self.run_ids.add(run_id := str(uuid4()))
        run = materialize(self.instance, selection, run_id, partition_key=partition)
        checked = {
            name: str(value.value)
            for each in run.get_asset_check_evaluations()
            if each.check_name == COPIES_EQUAL and each.asset_key == snapshot
            for name, value in each.metadata.items()
            if name.endswith("_fingerprint")
        }
        return {table_name(*result): checked}


def result_of(definition: ProcessorDefinition) -> tuple[str, str]:
    """The name of the processor, and the name of the store that has its result."""
    return definition.name, RESULTS[definition.name]


def materialize(
    instance: dg.DagsterInstance, selection: list[dg.AssetKey], run_id: str = "", partition_key: str | None = None
) -> dg.ExecuteInProcessResult:
    """Materialise assets and run their checks in this process; returns the result of the run.

    An empty ``run_id`` means a new id.

    Raises:
        DemoFailed: An asset or a check failed.
    """
    from holdfast.orchestration.code_location import defs

    job, run_id = defs.resolve_implicit_global_asset_job_def(), run_id or str(uuid4())
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
    return f"{event.step_key}: {own_words(error) or event.message}"
