"""The route ``/metrics``: a worker's status as Prometheus metrics. ``docs/metrics.md`` explains each metric.

Invariants:
    - A message is counted as processed once, even if it is processed again after an abort. Outputs, dead letters and
      skipped messages are counted each time they occur, also in aborted transactions.
    - The metrics are computed from the document of ``/status``, so a scrape costs the worker as much as one status
      request.
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

from holdfast.processors.engine.runtime.ownership.standby import StandbyPhase
from holdfast.processors.engine.runtime.phases import Phase

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_IDENTITY = ("processor", "slot")
_PARTITION = ("topic", "partition")
#: The value of a metric: one number, or a mapping from label values to numbers. None means unknown.
_Value = float | Mapping[Any, float | None]


class WorkerMetrics:
    """Formats a worker's status documents as Prometheus metrics. The counter of processed messages never decreases."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processed = 0

    def page(self, status: Mapping[str, Any], heartbeat_age_s: float) -> bytes:
        """Returns the metrics page for a status document of ``describe_worker``."""
        with self._lock:
            self._processed = max(self._processed, status["records"]["processed"])
            processed = self._processed
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Snapshot(status, heartbeat_age_s, processed))
        return generate_latest(registry)


class _Snapshot(Collector):
    """Converts one status document to metric families of the Prometheus client library."""

    def __init__(self, status: Mapping[str, Any], heartbeat_age_s: float, processed: int) -> None:
        self._status = status
        self._identity = (status["processor"], status["slot"])
        self._heartbeat_age_s = heartbeat_age_s
        self._processed = processed

    def collect(self) -> Iterable[Metric]:
        """Yields the metric families, in the order of ``docs/metrics.md``."""
        yield from self._worker()
        yield from self._records()
        yield from self._commits()
        yield from self._tasks()
        yield from self._checkpoints()
        yield from self._standbys()
        yield from self._connectors()
        yield from self._queries()

    def _worker(self) -> Iterator[Metric]:
        status = self._status
        what = {(status["code_version"], status["guarantee"]): 1.0}
        yield self._gauge("holdfast_worker_info", "What runs; always 1.", what, "code_version", "guarantee")
        phases = {(phase.value,): float(status["phase"] == phase.value) for phase in Phase}
        yield self._gauge("holdfast_phase", "1 for the phase that the worker is in, 0 for all others.", phases, "phase")
        yield self._gauge("holdfast_paused", "1 while the worker is paused on request.", float(status["paused"]))
        yield self._gauge("holdfast_start_time_seconds", "When it started, since 1970.", status["started_at"])
        age_s = self._heartbeat_age_s
        yield self._gauge("holdfast_heartbeat_age_seconds", "Since the loop's last sign of life.", age_s)

    def _records(self) -> Iterator[Metric]:
        records = self._status["records"]
        yield self._counter("holdfast_records_processed", "Input records processed.", self._processed)
        yield self._counter("holdfast_outputs_sent", "Records sent to output topics.", records["outputs"])
        yield self._counter("holdfast_dead_letters", "Records put aside as dead letters.", records["dead_lettered"])
        yield self._counter("holdfast_records_skipped", "Records skipped on an error.", records["skipped"])
        lookups = self._status.get("lookups", {})
        for name, said, field in (
            ("holdfast_lookup_hits", "Rows of join_lookup that needed no call of their own.", "hits"),
            ("holdfast_lookup_misses", "Calls that join_lookup made.", "misses"),
        ):
            yield self._counter(name, said, {(of,): seen[field] for of, seen in lookups.items()}, "lookup")
        kept = {(of,): seen["entries"] for of, seen in lookups.items()}
        yield self._gauge("holdfast_lookup_cached_records", "Answers in the cache of join_lookup.", kept, "lookup")

        tables = self._status.get("global_tables", {})
        for name, said, field in (
            ("holdfast_global_table_records", "Rows of global tables.", "rows"),
            ("holdfast_global_table_size_bytes", "Memory of global tables.", "bytes"),
        ):
            yield self._gauge(name, said, {(topic,): seen[field] for topic, seen in tables.items()}, "topic")

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
        lags = {
            (topic, str(task["partition"])): at["lag"]
            for task in tasks
            for topic, at in task["inputs"].items()
            if task["phase"] == "running"
        }
        yield self._gauge("holdfast_lag_records", "Input records that are still to process.", lags, *_PARTITION)
        times = {(task["task"],): task.get("stream_time") for task in tasks}
        yield self._gauge("holdfast_stream_time_seconds", "The task's stream time, since 1970.", times, "task")
        late = {(task["task"], store): count for task in tasks for store, count in task.get("late", {}).items()}
        too_late = (
            "Windows that a message came too late for, and late messages of steps that drop duplicates or average."
        )
        yield self._counter("holdfast_late_windows", too_late, late, "task", "store")
        timed = {(task["task"], store): each for task in tasks for store, each in task.get("timers", {}).items()}
        timers = {place: each for place, each in timed.items() if "schedules" not in each}
        yield from self._schedules(timed)
        pending = {place: each["pending"] for place, each in timers.items()}
        not_fired = "Timers that have not fired, counted up to a bound."
        yield self._gauge("holdfast_pending_timers", not_fired, pending, "task", "store")
        clocks = ("stream", "processing")
        nexts = {(*place, clock): each[f"next_{clock}"] for place, each in timers.items() for clock in clocks}
        first = "The time of the next timer, since 1970."
        yield self._gauge("holdfast_next_timer_seconds", first, nexts, "task", "store", "clock")
        sizes = {(task["task"],): task["store_bytes"] for task in tasks}
        yield self._gauge("holdfast_store_size_bytes", "The task's store on disk.", sizes, "task")
        for name, said, field in (
            ("holdfast_restore_records", "Changelog records replayed by the restore under way.", "records"),
            ("holdfast_restore_remaining_offsets", "Changelog offsets that it has still to go.", "remaining"),
            ("holdfast_restore_records_per_second", "How fast it replays.", "records_per_s"),
        ):
            restores = {(task["task"],): (task["restore"] or {}).get(field) for task in tasks}
            yield self._gauge(name, said, restores, "task")
        for name, said, field in (
            ("holdfast_state_reads", "Reads of state by the processor's functions.", "reads"),
            ("holdfast_state_misses", "Those of them that went to the database; the others were cache hits.", "misses"),
        ):
            counts = {(task["task"], store): seen[field] for task in tasks for store, seen in task["state"].items()}
            yield self._counter(name, said, counts, "task", "store")

    def _schedules(self, timed: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[Metric]:
        found = {(task, name): s for (task, _), of in timed.items() for name, s in of.get("schedules", {}).items()}
        for metric, said, what in (
            ("holdfast_schedule_next_seconds", "The next slot of a schedule, since 1970.", "next"),
            ("holdfast_schedule_last_seconds", "The last slot that fired, since 1970.", "last"),
        ):
            yield self._gauge(metric, said, {of: each[what] for of, each in found.items()}, "task", "schedule")
        for metric, said, what in (
            ("holdfast_schedule_fired", "Slots that fired, since the schedule began.", "fired"),
            ("holdfast_schedule_missed", "Slots that did not fire, since the schedule began.", "missed"),
        ):
            yield self._counter(metric, said, {of: each[what] for of, each in found.items()}, "task", "schedule")

    def _checkpoints(self) -> Iterator[Metric]:
        told = self._status.get("checkpoints")
        if told is None:
            return
        failed = "0 after a checkpoint that was not stored, or not in time."
        yield self._gauge("holdfast_checkpoint_store_ok", failed, told["ok"])
        yield self._counter("holdfast_checkpoints_stored", "Checkpoints stored.", told["uploads"])
        yield self._counter("holdfast_checkpoint_failures", "Checkpoints that could not be stored.", told["failures"])
        new = "Bytes of the files that were new in them."
        yield self._counter("holdfast_checkpoint_stored_bytes", new, told["uploaded_bytes"])
        times = {(task,): last["at"] for task, last in told["tasks"].items()}
        when = "When the task's last stored checkpoint was taken, since 1970."
        yield self._gauge("holdfast_checkpoint_time_seconds", when, times, "task")

    def _standbys(self) -> Iterator[Metric]:
        standbys = self._status.get("standbys", ())
        phases = {
            (standby["task"], phase.value): float(standby["phase"] == phase.value)
            for standby in standbys
            for phase in StandbyPhase
        }
        positions = {
            (standby["task"], store): seen["position"]
            for standby in standbys
            for store, seen in standby["stores"].items()
        }
        lags = {(standby["task"],): standby["lag"] for standby in standbys}
        one = "1 for the phase that the standby is in, 0 for all others."
        yield self._gauge("holdfast_standby_phase", one, phases, "task", "phase")
        next_offset = "The next changelog offset that the standby replays."
        yield self._gauge("holdfast_standby_position_offsets", next_offset, positions, "task", "store")
        yield self._gauge("holdfast_standby_lag_offsets", "Changelog offsets that the standby lacks.", lags, "task")

    def _connectors(self) -> Iterator[Metric]:
        sources, sinks = self._status.get("sources", {}), self._status.get("sinks", {})
        for name, said, field in (
            ("holdfast_source_messages", "Committed messages of a source.", "produced"),
            ("holdfast_source_failures", "Failed attempts of a source to reach its system.", "failures"),
        ):
            yield self._counter(name, said, {(of,): each[field] for of, each in sources.items()}, "source")
        reached = {(of,): each["reported_at"] for of, each in sources.items()}
        when = "When a source last reached its system, since 1970."
        yield self._gauge("holdfast_source_success_time_seconds", when, reached, "source")
        left = {(of, unit): count for of, each in sources.items() for unit, count in each["remaining"].items()}
        yield self._gauge("holdfast_source_remaining", "What a source has still to read.", left, "source", "unit")
        for name, said, field in (
            ("holdfast_sink_results", "Results that a sink stored.", "stored"),
            ("holdfast_sink_failures", "Failed attempts to store or publish results.", "failures"),
            ("holdfast_sink_refused", "Results that a system refused for ever.", "refused"),
        ):
            yield self._counter(name, said, {(of,): each[field] for of, each in sinks.items()}, "sink")
        stored = {(of,): each["stored_at"] for of, each in sinks.items()}
        yield self._gauge("holdfast_sink_success_time_seconds", "When a sink last stored results.", stored, "sink")
        parts = {(of,): each["unpublished"] for of, each in sinks.items()}
        yield self._gauge("holdfast_sink_unpublished_parts", "Committed parts that wait.", parts, "sink")

    def _queries(self) -> Iterator[Metric]:
        stores = self._status.get("queries", {})
        counts = {(store, what): each[what] for store, each in stores.items() for what in ("answered", "refused")}
        yield self._counter("holdfast_queries", "Queries about a store's state.", counts, "store", "outcome")

    def _gauge(self, name: str, said: str, value: _Value, *labels: str) -> Metric:
        return self._filled(GaugeMetricFamily(name, said, labels=[*_IDENTITY, *labels]), value)

    def _counter(self, name: str, said: str, value: _Value, *labels: str) -> Metric:
        return self._filled(CounterMetricFamily(name, said, labels=[*_IDENTITY, *labels]), value)

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, value: _Value) -> Metric:
        for of, number in (value if isinstance(value, Mapping) else {(): value}).items():
            if number is not None:
                family.add_metric([*self._identity, *of], number)
        return family
