"""The sensors that watch deployed processors: ``processor_recovery``, ``processor_telemetry`` and ``run_failures``.

``processor_recovery`` opens incidents, requests recovery runs and updates the asset checks ``working``.
``processor_telemetry`` logs observations with lag and throughput, and updates the asset checks ``messages_arrive``,
``source_alive``, ``sink_writes`` and ``queries_answered``.
``run_failures`` logs failed runs.

Invariants:
    - A tick repairs nothing. It asks workers for their status, with short timeouts, and requests runs.
    - ``processors.lifecycle.recovery.tick`` makes the decisions; this module only connects it to Dagster.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

import dagster as dg
import msgspec
import structlog

from holdfast.assets import keys
from holdfast.assets.checks.arrivals import arrivals_result
from holdfast.assets.checks.recovery import check_result
from holdfast.assets.keys import PROCESSOR_TAG
from holdfast.assets.pages.worker_figures import details_of, facts_of
from holdfast.infra.database.records import ApplyRecord, Deployment, Incident
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import load_settings
from holdfast.orchestration.host.run_time_limits import overdue_words
from holdfast.orchestration.jobs.recover_processor import (
    INCIDENT_TAG,
    SINCE_TAG,
    RecoverConfig,
    recover_processor,
    tags_of_incident,
)
from holdfast.orchestration.resources import ClusterResource, LifecycleResource
from holdfast.orchestration.sensors.apart import SKIPPED, must_skip
from holdfast.orchestration.sensors.connectors import connector_news, observe_every_s, query_news
from holdfast.processors.engine.connectors import ConnectorSpec
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.observing_all import look_at_all
from holdfast.processors.lifecycle.health.arrivals import judge_arrivals
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.conditions import Conditions, once
from holdfast.processors.lifecycle.recovery.diagnosis import Diagnosis
from holdfast.processors.lifecycle.recovery.incidents import Notice, is_broken_off, observe, silence_of
from holdfast.processors.lifecycle.recovery.lagging import Lag, next_lag
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import incident_of, last_apply, strangers_beside
from holdfast.processors.lifecycle.recovery.tick import Run, next_run, take_look
from holdfast.processors.lifecycle.recovery.working_check import (
    Answer,
    is_due,
    judge_behind,
    judge_beside,
    judge_interrupted,
    judge_pause,
    judge_working,
)

#: Name of the recovery sensor.
RECOVERY_SENSOR = "processor_recovery"
RECOVERY_EVERY_S = 10
TELEMETRY_EVERY_S = 60
#: Seconds between two observations if no figure changed much. The value is large, because each observation takes 5 KB
#: of Dagster's log.
OBSERVE_EVERY_S = 300.0
#: A lag that doubled or halved since the last observation is logged at once, unless it is below this number of records.
LAG_NEWS = 1_000
#: Maximum number of stores for which one tick logs observations. The next tick continues with the remaining stores.
STATES_PER_TICK = 20
#: Figures of a processor that are also logged as observations of the processor's stores.
OF_STATES = ("lag_records", "checkpoints_stored", "checkpoint_seconds", "checkpoint_mib")
#: Dagster's tag that holds the ``run_key`` of a run request.
RUN_KEY_TAG = "dagster/run_key"
#: Key in the cursor for the store with which the next tick begins. It can't clash with the name of a processor.
_NEXT_STATE = "/next state"
#: Key in the cursor for what was reported of the sources and sinks of each processor.
_CONNECTORS = "/connectors"
#: Key in the cursor for what was reported of the queries about the stores of each processor.
_QUERIES = "/queries"
#: Key in the cursor for the last reported result of the check ``messages_arrive`` of each processor.
_ARRIVALS = "/arrivals"

log = structlog.get_logger(__name__)


def build_sensors(
    stores: dict[str, tuple[str, ...]],
    connectors: Mapping[str, Sequence[ConnectorSpec]] = MappingProxyType({}),
    *,
    recovery_enabled: bool,
) -> list[dg.SensorDefinition]:
    """The three sensors of this module.

    ``stores`` and ``connectors`` map the name of each processor to the names of its stores, and to its sources and
    sinks.
    """
    return [recovery_sensor(enabled=recovery_enabled), _telemetry(stores, connectors), run_failures]


def recovery_sensor(*, enabled: bool, apart: bool = False) -> dg.SensorDefinition:
    """The sensor ``processor_recovery``.

    It updates the check ``working`` of each deployed processor, even if the processor's definition can't be imported.

    Args:
        enabled: Whether the sensor is switched on in a new Dagster instance.
        apart: Whether this copy of the sensor is in the code location `recovery` (``sensors.apart``).
    """

    @dg.sensor(
        job=recover_processor,
        minimum_interval_seconds=RECOVERY_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING if enabled else dg.DefaultSensorStatus.STOPPED,
        description="Watches every deployed processor. Opens one incident for a broken processor, requests one "
        "recovery run, and updates the check `working` when its result changes.",
    )
    def processor_recovery(
        context: dg.SensorEvaluationContext, cluster: ClusterResource, lifecycle: LifecycleResource
    ) -> dg.SensorResult:
        if must_skip(context.instance, RECOVERY_SENSOR, apart=apart):
            return dg.SensorResult(skip_reason=SKIPPED, cursor=context.cursor)
        try:
            waiting = {incident.processor: incident for incident in lifecycle.registry.open_incidents()}
            deployments = lifecycle.registry.deployments()
            begun = {each.processor: each for each in lifecycle.registry.journal.applies(open_only=True)}
        except HoldfastError as failed:
            context.log.warning(f"The registry cannot be read: {failed}")
            return dg.SensorResult(skip_reason=f"The registry cannot be read: {failed}", cursor=context.cursor)
        conditions = Conditions(once(cluster.ping), lifecycle.paths.state)
        world = look_at_all(lifecycle.world, deployments)
        tick = _Tick(context, lifecycle, conditions, _remembered(context.cursor), begun, world)
        for deployment in deployments:
            name = deployment.processor
            try:
                tick.look(deployment, waiting.get(name))
            except HoldfastError as failed:
                context.log.warning(f"The status of {name} could not be read: {failed}")
                tick.sentences.append(f"{name}: {failed.message}")
        summary = " ".join(tick.sentences) or "No processor is deployed."
        return dg.SensorResult(
            run_requests=tick.requests or None,
            skip_reason=None if tick.requests else summary,
            asset_events=tick.events,
            cursor=msgspec.json.encode(tick.after).decode(),
        )

    return processor_recovery


class _Remembered(msgspec.Struct):
    """The facts about one processor that the sensor keeps in its cursor from tick to tick."""

    #: Slot (place of a worker) -> time at which its worker last answered a status request.
    answered: dict[str, datetime] = {}
    #: Last reported result of the check ``working``: its text, and its time in seconds since 1970.
    told: tuple[str, float] | None = None
    lag: Lag | None = None


@dataclass
class _Tick:
    """One tick over all processors; collects run requests, check results and the cursor for the next tick."""

    context: dg.SensorEvaluationContext
    lifecycle: LifecycleResource
    conditions: Conditions
    before: dict[str, _Remembered]
    #: Processor -> its open apply (an execution of a plan that has not ended).
    begun: dict[str, ApplyRecord]
    #: The status of all workers. All status requests are parallel, so that workers without an answer cost one timeout.
    world: World
    after: dict[str, _Remembered] = field(default_factory=dict)
    requests: list[dg.RunRequest] = field(default_factory=list)
    events: list[dg.AssetCheckEvaluation] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)

    def look(self, deployment: Deployment, waiting: Incident | None) -> None:
        """Diagnose one processor, then request a recovery run and update its check ``working`` if needed.

        ``waiting`` is the processor's open incident, or None.

        Raises:
            HoldfastError: The supervisor or Holdfast's registry did not answer.
        """
        name = deployment.processor
        kept = self.after[name] = self.before.get(name, _Remembered())
        begun = self.begun.get(name)
        found = take_look(
            deployment,
            waiting,
            self.world,
            limits=Limits(stuck_after_s=load_settings().stuck_after_s),
            conditions=self.conditions,
            answered_at=kept.answered,
        )
        self.sentences += found.sentences
        if found.old is not None:
            self._report(name, judge_behind(found.old, silence_of(self.world)), None)
        seen = found.seen
        if seen is None:
            return
        if seen.opened and seen.incident is not None:
            self.context.log.warning(f"{name}: opened incident {seen.incident.id} ({seen.incident.kind}).")
        kept.answered = dict(seen.answered_at)
        if found.due is not None:
            request = _request(self.context, self.lifecycle, found.due)
            self.requests += [] if request is None else [request]
        if begun is None:
            self._check_working(name, seen, kept)
        self._check_apply(begun, seen.diagnoses)

    def _check_working(self, name: str, seen: Notice, kept: _Remembered) -> None:
        """Update the check ``working`` if its result changed, or if its last update is half an hour old."""
        world = self.lifecycle.world
        now = world.clock()
        statuses = [each.status for each in seen.observations.values() if each.status is not None]
        kept.lag = next_lag(kept.lag, statuses, now)
        incident = incident_of(name, world)
        answer = judge_working(seen.diagnoses, incident, now, lag=kept.lag, processor=name)
        if answer is not None:
            self._report(name, judge_pause(answer, last_apply(name, world)), incident)

    def _check_apply(self, begun: ApplyRecord | None, found: Mapping[str, Diagnosis]) -> None:
        """Report an interrupted apply (execution of a plan) in the check ``working``.

        Does nothing for an apply that still runs.
        """
        if begun is not None and is_broken_off(begun):
            incident = incident_of(begun.processor, self.lifecycle.world)
            self._report(begun.processor, judge_interrupted(begun, found, incident), None)

    def _report(self, name: str, answer: Answer, incident: Incident | None) -> None:
        answer = judge_beside(answer, name, strangers_beside(answer, name, self.begun.get(name), self.world))
        now = self.lifecycle.world.clock().timestamp()
        if is_due(answer, self.after[name].told, now):
            self.events.append(check_result(name, answer, incident).evaluation())
            self.after[name].told = (answer.short, now)


def _request(
    context: dg.SensorEvaluationContext, lifecycle: LifecycleResource, incident: Incident
) -> dg.RunRequest | None:
    """A request for the next recovery run of an open incident; None if no run is due now."""
    records = context.instance.get_run_records(dg.RunsFilter(tags={INCIDENT_TAG: str(incident.id)}))
    key = next_run(incident.id, [_run_of(record) for record in records], lifecycle.world, context.log.warning)
    if key is None:
        return None
    return dg.RunRequest(
        run_key=key,
        tags={PROCESSOR_TAG: incident.processor, **tags_of_incident(incident)},
        run_config=dg.RunConfig(ops={"recover_one": RecoverConfig(processor=incident.processor, incident=incident.id)}),
    )


def _run_of(record: dg.RunRecord) -> Run:
    run = record.dagster_run
    return Run(
        id=run.run_id,
        key=run.tags.get(RUN_KEY_TAG, ""),
        created_at=record.create_timestamp,
        since=run.tags.get(SINCE_TAG),
        is_finished=run.is_finished,
        succeeded=run.status == dg.DagsterRunStatus.SUCCESS,
        ended_at=record.end_time or record.update_timestamp.timestamp(),
    )


@dg.run_failure_sensor(
    default_status=dg.DefaultSensorStatus.RUNNING, description="Logs every failed run with its processor and its cause."
)
def run_failures(context: dg.RunFailureSensorContext) -> None:
    """Log the event ``run.failed`` with job, run id, processor and cause."""
    run = context.dagster_run
    fields = {"job": run.job_name, "run": run.run_id, "processor": run.tags.get(PROCESSOR_TAG)}
    overdue = overdue_words(run.run_id, run.job_name, run.tags)
    log.error("run.failed", **fields, cause=overdue or context.failure_event.message)


def _remembered(cursor: str | None) -> dict[str, _Remembered]:
    """Decodes the cursor: processor -> the facts that the last tick stored.

    Empty if another version wrote the cursor.
    """
    try:
        return msgspec.json.decode(cursor or "{}", type=dict[str, _Remembered])
    except msgspec.MsgspecError:
        return {}


def _telemetry(
    stores: dict[str, tuple[str, ...]], connectors: Mapping[str, Sequence[ConnectorSpec]]
) -> dg.SensorDefinition:
    every_s = observe_every_s(sum(map(len, connectors.values())))

    @dg.sensor(
        minimum_interval_seconds=TELEMETRY_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Logs lag, throughput and tasks of every deployed processor as observations of its assets: at each "
        "change, and every five minutes. Updates their checks `messages_arrive`, `source_alive`, `sink_writes` and "
        "`queries_answered`.",
    )
    def processor_telemetry(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult:
        limits = Limits(stuck_after_s=load_settings().stuck_after_s)
        before: dict[str, Any] = json.loads(context.cursor or "{}")
        now = lifecycle.world.clock().timestamp()
        events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
        after: dict[str, Any] = {}
        of_states: dict[str, dict[str, int | float]] = {}

        def outside_news(
            name: str, statuses: Sequence[ProcessorStatus]
        ) -> list[dg.AssetObservation | dg.AssetCheckEvaluation]:
            """What is new of a processor's sources, sinks and queries. Keeps the memos for the next tick."""
            kept, asked = ((before.get(part) or {}).get(name) for part in (_CONNECTORS, _QUERIES))
            found, memo = connector_news(name, connectors.get(name, ()), statuses, kept, now, every_s)
            after.setdefault(_CONNECTORS, {})[name] = memo
            more, memo = query_news(name, stores[name], statuses, asked, now)
            after.setdefault(_QUERIES, {})[name] = memo
            return [*found, *more]

        recorded = lifecycle.registry.deployments()
        deployments = [each for each in recorded if each.processor in stores and each.desired != "stopped"]
        world = look_at_all(lifecycle.world, deployments)
        for name in (each.processor for each in deployments):
            try:
                seen = observe(name, world, limits)
            except HoldfastError as failed:
                context.log.warning(f"The status of {name} could not be read: {failed}")
                continue
            statuses = [each.status for each in seen.values() if each.status is not None]
            arrived, told = arrival_news(name, statuses, (before.get(_ARRIVALS) or {}).get(name), now)
            events += arrived
            after.setdefault(_ARRIVALS, {})[name] = told
            events += outside_news(name, statuses)
            facts, figures = facts_of(statuses, before.get(name))
            if not is_news(facts, before.get(name), now):
                after[name] = before[name]
                continue
            after[name] = {**facts, **figures, "told_at": now}
            details = details_of(name, statuses, lifecycle.paths)
            events.append(dg.AssetObservation(keys.processor_key(name), metadata={**facts, **details}))
            if "lag_records" in facts:
                of_states[name] = {key: facts[key] for key in OF_STATES if key in facts}
        # The checks of a stopped processor must not stay green: nobody runs its sources and sinks, or answers queries.
        for name in (each.processor for each in recorded if each.desired == "stopped" and each.processor in stores):
            events += outside_news(name, [])
        all_states = [(name, store) for name in of_states for store in stores[name]]
        states, after[_NEXT_STATE] = turn(sorted(all_states), before.get(_NEXT_STATE))
        events += [dg.AssetObservation(keys.state_key(*one), metadata=of_states[one[0]]) for one in states]
        return dg.SensorResult(
            asset_events=events, skip_reason=f"{len(events)} observations logged.", cursor=json.dumps(after)
        )

    return processor_telemetry


def arrival_news(
    processor: str, statuses: Sequence[ProcessorStatus], before: Any, now: float
) -> tuple[list[dg.AssetCheckEvaluation], Any]:
    """The result of the check ``messages_arrive`` if it must be reported, and the memo for the next tick.

    ``before`` and the memo are [passed, total, time of the report]. A changed verdict is reported at once; changed
    counts with the same verdict are reported once in ``OBSERVE_EVERY_S``. If no worker answers, nothing is reported.
    """
    judged = judge_arrivals(processor, statuses, now)
    if judged is None:
        return [], before
    passed, total = judged.passed, judged.counts.total
    if before and before[0] == passed and (before[1] == total or now - before[2] < OBSERVE_EVERY_S):
        return [], before
    return [arrivals_result(processor, judged).evaluation()], [passed, total, now]


def is_news(facts: Mapping[str, int | float], told: Mapping[str, Any] | None, now: float) -> bool:
    """Whether to log an observation now.

    True if the number of workers or tasks changed, the lag doubled or halved, or the last observation is
    ``OBSERVE_EVERY_S`` old. ``told`` has the numbers of the last observation, and its time ``told_at``. Times are
    seconds since 1970.
    """
    if not told or abs(now - told.get("told_at", 0.0)) >= OBSERVE_EVERY_S:
        return True
    if any(facts.get(name) != told.get(name) for name in ("instances", "tasks_running")):
        return True
    lag, before = facts.get("lag_records"), told.get("lag_records")
    if lag is None or before is None:
        return lag is not before
    return bool(max(lag, before) > 2 * max(min(lag, before), LAG_NEWS))


def turn(states: list[tuple[str, str]], first: Any) -> tuple[list[tuple[str, str]], list[str]]:
    """The stores to observe in this tick, at most ``STATES_PER_TICK``, and the store to begin with in the next tick.

    ``states`` are all pairs (processor, store); ``first`` is the first store of this tick, from the cursor.
    """
    start = next((number for number, one in enumerate(states) if list(one) >= first), 0) if first else 0
    ordered = states[start:] + states[:start]
    rest = ordered[STATES_PER_TICK:]
    return ordered[:STATES_PER_TICK], list(rest[0]) if rest else []
