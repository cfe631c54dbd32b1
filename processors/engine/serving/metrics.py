"""The route ``/metrics``: a worker's status as Prometheus metrics; ``docs/metrics.md`` explains each.

Invariants:
    - A processed message counts once, even if it is processed again after an abort. Outputs, dead letters and skipped
      messages count each time, also in aborted transactions.
    - Only the published status is read, so a scrape costs the worker no more than a status.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from holdfast.processors.engine.runtime.loop import Phase
from holdfast.processors.engine.runtime.standby import StandbyPhase

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_IDENTITY = ("processor", "slot")


class WorkerMetrics:
    """Formats one worker's status documents as metrics; its counter of processed messages never falls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processed = 0

    def page(self, status: Mapping[str, Any], heartbeat_age_s: float) -> bytes:
        """The metrics of one status document, as ``describe_worker`` returns it."""
        with self._lock:
            self._processed = max(self._processed, status["records"]["processed"])
            processed = self._processed
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Snapshot(status, heartbeat_age_s, processed))
        return generate_latest(registry)


class _Snapshot(Collector):
    """One status document as metric families."""

    def __init__(self, status: Mapping[str, Any], heartbeat_age_s: float, processed: int) -> None:
        self._status = status
        self._identity = (status["processor"], status["slot"])
        self._heartbeat_age_s = heartbeat_age_s
        self._processed = processed

    def collect(self) -> Iterable[Metric]:
        """All metric families, in the order of ``docs/metrics.md``."""
        yield from self._worker()
        yield from self._records()
        yield from self._commits()
        yield from self._tasks()
        yield from self._checkpoints()
        yield from self._standbys()

    def _worker(self) -> Iterator[Metric]:
        status = self._status
        facts = GaugeMetricFamily(
            "holdfast_worker_info", "What runs; always 1.", labels=[*_IDENTITY, "code_version", "guarantee"]
        )
        facts.add_metric([*self._identity, status["code_version"], status["guarantee"]], 1)
        yield facts
        phases = GaugeMetricFamily(
            "holdfast_phase", "1 for the phase that the worker is in, 0 for all others.", labels=[*_IDENTITY, "phase"]
        )
        for phase in Phase:
            phases.add_metric([*self._identity, phase.value], float(status["phase"] == phase.value))
        yield phases
        yield self._gauge("holdfast_paused", "1 while the worker is paused on request.", float(status["paused"]))
        yield self._gauge("holdfast_start_time_seconds", "When it started, since 1970.", status["started_at"])
        yield self._gauge(
            "holdfast_heartbeat_age_seconds", "Since the loop's last sign of life.", self._heartbeat_age_s
        )

    def _records(self) -> Iterator[Metric]:
        records = self._status["records"]
        yield self._counter("holdfast_records_processed", "Input records processed.", self._processed)
        yield self._counter("holdfast_outputs_sent", "Records sent to output topics.", records["outputs"])
        yield self._counter("holdfast_dead_letters", "Records put aside as dead letters.", records["dead_lettered"])
        yield self._counter("holdfast_records_skipped", "Records skipped on an error.", records["skipped"])

    def _commits(self) -> Iterator[Metric]:
        commits = self._status["commits"]
        yield self._counter("holdfast_commits", "Commits that are done.", commits["count"])
        yield self._counter("holdfast_aborts", "Transactions given up and processed again.", commits["aborted"])
        if commits["last_at"] is not None:
            yield self._gauge("holdfast_last_commit_time_seconds", "When it last committed.", commits["last_at"])
        latency = commits["latency"]
        bounds = [*(str(float(bound)) for bound in latency["bounds_s"]), "+Inf"]
        family = HistogramMetricFamily("holdfast_commit_duration_seconds", "How long commits took.", labels=_IDENTITY)
        buckets = list(zip(bounds, accumulate(latency["counts"]), strict=True))
        family.add_metric(self._identity, buckets=buckets, sum_value=latency["sum_s"])
        yield family

    def _tasks(self) -> Iterator[Metric]:
        tasks = self._status["tasks"]
        lag = GaugeMetricFamily(
            "holdfast_lag_records",
            "Input records that are still to process.",
            labels=[*_IDENTITY, "topic", "partition"],
        )
        for task in tasks:
            for topic, at in task["inputs"].items():
                if at["lag"] is not None and task["phase"] == "running":
                    lag.add_metric([*self._identity, topic, str(task["partition"])], at["lag"])
        yield lag
        yield self._per_task(
            "holdfast_store_size_bytes",
            "The task's store on disk.",
            {task["task"]: task["store_bytes"] for task in tasks},
        )
        restores = {task["task"]: task["restore"] or {} for task in tasks}
        for name, said, field in (
            ("holdfast_restore_records", "Changelog records replayed by the restore under way.", "records"),
            ("holdfast_restore_remaining_offsets", "Changelog offsets that it has still to go.", "remaining"),
            ("holdfast_restore_records_per_second", "How fast it replays.", "records_per_s"),
        ):
            yield self._per_task(name, said, {task: restore.get(field) for task, restore in restores.items()})
        for name, said, field in (
            ("holdfast_state_reads", "Reads of state by the processor's functions.", "reads"),
            ("holdfast_state_misses", "Those of them that went to the database; the others were cache hits.", "misses"),
        ):
            counter = CounterMetricFamily(name, said, labels=[*_IDENTITY, "task", "store"])
            for task in tasks:
                for store, counts in task["state"].items():
                    counter.add_metric([*self._identity, task["task"], store], counts[field])
            yield counter

    def _checkpoints(self) -> Iterator[Metric]:
        told = self._status.get("checkpoints")
        if told is None:
            return
        yield self._gauge(
            "holdfast_checkpoint_store_ok", "0 after a checkpoint that was not stored, or not in time.", told["ok"]
        )
        yield self._counter("holdfast_checkpoints_stored", "Checkpoints stored.", told["uploads"])
        yield self._counter("holdfast_checkpoint_failures", "Checkpoints that could not be stored.", told["failures"])
        yield self._counter(
            "holdfast_checkpoint_stored_bytes", "Bytes of the files that were new in them.", told["uploaded_bytes"]
        )
        yield self._per_task(
            "holdfast_checkpoint_time_seconds",
            "When the task's last stored checkpoint was taken, since 1970.",
            {task: last["at"] for task, last in told["tasks"].items()},
        )

    def _standbys(self) -> Iterator[Metric]:
        standbys = self._status.get("standbys", ())
        phases = GaugeMetricFamily(
            "holdfast_standby_phase",
            "1 for the phase that the standby is in, 0 for all others.",
            labels=[*_IDENTITY, "task", "phase"],
        )
        positions = GaugeMetricFamily(
            "holdfast_standby_position_offsets",
            "The next changelog offset that the standby replays.",
            labels=[*_IDENTITY, "task", "store"],
        )
        for standby in standbys:
            for phase in StandbyPhase:
                at = float(standby["phase"] == phase.value)
                phases.add_metric([*self._identity, standby["task"], phase.value], at)
            for store, seen in standby["stores"].items():
                positions.add_metric([*self._identity, standby["task"], store], seen["position"])
        yield phases
        yield positions
        lags = {standby["task"]: standby["lag"] for standby in standbys}
        yield self._per_task("holdfast_standby_lag_offsets", "Changelog offsets that the standby lacks.", lags)

    def _gauge(self, name: str, said: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, said, labels=_IDENTITY)
        family.add_metric(self._identity, value)
        return family

    def _counter(self, name: str, said: str, value: float) -> Metric:
        family = CounterMetricFamily(name, said, labels=_IDENTITY)
        family.add_metric(self._identity, value)
        return family

    def _per_task(self, name: str, said: str, values: Mapping[str, float | None]) -> Metric:
        family = GaugeMetricFamily(name, said, labels=[*_IDENTITY, "task"])
        for task, value in values.items():
            if value is not None:
                family.add_metric([*self._identity, task], value)
        return family
