"""Sensors: one asks for recovery (runs, no events), one tells how processors are (events, no runs), one logs failures.

Invariants:
    - A tick does no work: it looks, with short timeouts, and asks for a run.
    - One incident has one run at a time; its run key is the incident and the number of the run.
    - A run that ended and left its incident open (it was killed, say) is followed by another, up to a limit.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import dagster as dg
import structlog

from holdfast.assets import keys
from holdfast.assets.working import check_result, incident_of
from holdfast.infra.database.records import ApplyRecord, Deployment, Incident
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import load_settings
from holdfast.orchestration.jobs.recover_processor import INCIDENT_TAG, PROCESSOR_TAG, RecoverConfig, recover_processor
from holdfast.orchestration.resources import ClusterResource, LifecycleResource
from holdfast.orchestration.verbs import this_process
from holdfast.processors.lifecycle.deploy.observing_all import look_at_all
from holdfast.processors.lifecycle.plans.apply import is_free
from holdfast.processors.lifecycle.ports import ProcessorStatus
from holdfast.processors.lifecycle.recovery.answer import Answer, Lag, is_due, judge_broken_off, judge_working, next_lag
from holdfast.processors.lifecycle.recovery.conditions import Conditions, once
from holdfast.processors.lifecycle.recovery.diagnosis import Diagnosis, Limits
from holdfast.processors.lifecycle.recovery.incidents import Notice, notice, observe, wait_on, waits_for

RECOVERY_EVERY_S = 10
TELEMETRY_EVERY_S = 60
#: So many states are told of in one tick, the others in the next ones: Dagster's log keeps every event.
STATES_PER_TICK = 20
#: So many runs may end without closing their incident; then it is closed as failed.
RUNS_PER_INCIDENT = 3
#: How long after such a run the next one is asked for, seconds; doubled for each further one.
NEXT_RUN_AFTER_S = 30.0

#: In the cursor, beside the processors, which have no such name.
_NEXT_STATE = "/next state"

log = structlog.get_logger(__name__)


def build_sensors(stores: dict[str, tuple[str, ...]], *, recovery_enabled: bool) -> list[dg.SensorDefinition]:
    """The sensors over these processors (processor -> its stores)."""
    return [_recovery(frozenset(stores), enabled=recovery_enabled), _telemetry(stores), run_failures]


def _recovery(defined: frozenset[str], *, enabled: bool) -> dg.SensorDefinition:
    @dg.sensor(
        job=recover_processor,
        minimum_interval_seconds=RECOVERY_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING if enabled else dg.DefaultSensorStatus.STOPPED,
        description="Looks at every deployed processor; files one incident for one that is broken, asks for one "
        "recovery run, and tells the check `working` of each when its answer changes.",
    )
    def processor_recovery(
        context: dg.SensorEvaluationContext, cluster: ClusterResource, lifecycle: LifecycleResource
    ) -> dg.SensorResult:
        settings = load_settings()
        limits = Limits(stuck_after_s=settings.stuck_after_s)
        tick = _Tick(context, lifecycle, limits, Conditions(once(cluster.ping), settings.paths.state))
        try:
            waiting = {incident.processor: incident for incident in lifecycle.registry.open_incidents()}
            deployments = lifecycle.registry.deployments()
            tick.begun = {each.processor: each for each in lifecycle.registry.journal.applies(open_only=True)}
        except HoldfastError as failed:
            context.log.warning(f"The registry can't be asked: {failed}")
            return dg.SensorResult(skip_reason=f"The registry can't be asked: {failed}", cursor=context.cursor)
        tick.ask(deployments)
        for deployment in deployments:
            name = deployment.processor
            try:
                tick.look(deployment, waiting.get(name), told=name in defined)
            except HoldfastError as failed:
                context.log.warning(f"{name} could not be looked at: {failed}")
                tick.keep(name)
                tick.said.append(f"{name}: {failed.message}")
        said = " ".join(tick.said) or "Nothing is deployed."
        cursor = json.dumps(tick.after)
        if tick.requests:
            return dg.SensorResult(run_requests=tick.requests, asset_events=tick.events, cursor=cursor)
        return dg.SensorResult(skip_reason=said, asset_events=tick.events, cursor=cursor)

    return processor_recovery


class _Tick:
    """One look at all processors: what it asks for, what it tells, and what the next has to know."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        lifecycle: LifecycleResource,
        limits: Limits,
        conditions: Conditions,
    ) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._limits = limits
        self._conditions = conditions
        self._before = _remembered(context.cursor)
        #: Open applies by processor.
        self.begun: dict[str, ApplyRecord] = {}
        self.after: dict[str, Any] = {}
        self.requests: list[dg.RunRequest] = []
        self.events: list[dg.AssetCheckEvaluation] = []
        self.said: list[str] = []

    def ask(self, deployments: Iterable[Deployment]) -> None:
        """Ask all workers at once, before each is looked at: silent ones are waited for side by side."""
        self._world = look_at_all(self._lifecycle.world, [each for each in deployments if each.desired != "deploying"])

    def keep(self, name: str) -> None:
        """What was known of a processor stays known: it could not be looked at."""
        if name in self._before:
            self.after[name] = self._before[name]

    def look(self, deployment: Deployment, waiting: Incident | None, *, told: bool) -> None:
        """Look at one processor; ``waiting`` is its open incident, ``told`` whether it has a check.

        Raises:
            HoldfastError: Supervisor or registry didn't answer.
        """
        name = deployment.processor
        before = self._before.get(name, {})
        if deployment.desired == "deploying":
            self.after[name] = dict(before)
            self.said.append(f"{name}: {deployment.desired}")
            if told and name in self.begun:
                self._tell_of_apply(self.begun[name], {}, before)
            return
        seen = notice(name, self._world, self._limits, answered_at=_moments(before.get("answered")))
        self.said.append(f"{name}: {seen.worst.sentence}")
        # the processor may be well again while the run that should have closed its incident is gone
        incident = seen.incident or waiting
        if seen.opened and incident is not None:
            self._context.log.warning(f"{name}: incident {incident.id} was opened, {incident.kind}.")
        answered = {slot: moment.isoformat() for slot, moment in seen.answered_at.items()}
        self.after[name] = {**before, "answered": answered}
        if incident is not None and incident.is_open:
            self._ask(incident, seen)
        if told and name in self.begun:
            self._tell_of_apply(self.begun[name], seen.diagnoses, before)
        elif told:
            self._tell(name, seen, before)

    def _ask(self, incident: Incident, seen: Notice) -> None:
        """Ask for a run for an open incident, unless it waits for something that passes."""
        lasting = waits_for(incident, seen.worst, self._conditions)
        if lasting:
            wait_on(incident, seen.worst, lasting, self._lifecycle.world)
            self.said.append(f"Incident {incident.id} waits: {lasting}")
            return
        request = _request(self._context, self._lifecycle, incident.id)
        if request is not None:
            self.requests.append(request)

    def _tell(self, name: str, seen: Notice, before: dict[str, Any]) -> None:
        """Tell the check ``working`` when its answer is another one, or was not told for long."""
        world = self._lifecycle.world
        now = world.clock()
        statuses = [each.status for each in seen.observations.values() if each.status is not None]
        lag = next_lag(_lag(before.get("lag")), statuses, now)
        self.after[name]["lag"] = None if lag is None else [lag.records, lag.since]
        incident = incident_of(name, world)
        answer = judge_working(seen.diagnoses, incident, now, lag=lag)
        if answer is not None:
            self._say(name, answer, incident, before)

    def _tell_of_apply(self, begun: ApplyRecord, found: Mapping[str, Diagnosis], before: dict[str, Any]) -> None:
        """Tell of an apply that nobody carries out any more; while somebody does, what was said stands."""
        if is_free(begun, this_process(), self._lifecycle.world.clock()):
            self._say(begun.processor, judge_broken_off(begun, found), None, before)

    def _say(self, name: str, answer: Answer, incident: Incident | None, before: dict[str, Any]) -> None:
        now = self._lifecycle.world.clock().timestamp()
        if is_due(answer, before.get("told"), now):
            self.events.append(check_result(name, answer, incident).evaluation())
            self.after[name]["told"] = [answer.short, now]


def _request(
    context: dg.SensorEvaluationContext, lifecycle: LifecycleResource, incident_id: int
) -> dg.RunRequest | None:
    """A run for an open incident, unless one is on its way, works on it, or enough have tried."""
    registry = lifecycle.registry
    records = context.instance.get_run_records(dg.RunsFilter(tags={INCIDENT_TAG: str(incident_id)}))
    runs = [record.dagster_run for record in records]
    asked = len(runs)
    # read after the runs: a run closes its incident before it ends
    incident = registry.incident(incident_id)
    if incident is None or not incident.is_open or any(not run.is_finished for run in runs):
        return None
    name, holder = incident.processor, incident.claimed_by
    if holder is not None:
        if holder not in {run.run_id for run in runs}:
            return None
        registry.release_incident(incident.id, holder)
        context.log.warning(f"Incident {incident.id} of {name}: run {holder} ended and left it open.")
    # one that succeeded left it open on purpose: it waits; those of before a person asked for another try don't count
    since = incident.retried_at
    tried = [
        record
        for record in records
        if record.dagster_run.status != dg.DagsterRunStatus.SUCCESS
        and (since is None or record.create_timestamp > since)
    ]
    if len(tried) >= RUNS_PER_INCIDENT:
        reason = f"{len(tried)} runs ended and left it open; the last is {tried[0].dagster_run.run_id}"
        registry.close_incident(incident.id, "failed", lifecycle.world.clock(), reason=reason)
        context.log.error(f"Incident {incident.id} of {name} failed: {reason}")
        return None
    ended_at = max((each.end_time or each.update_timestamp.timestamp() for each in tried), default=None)
    pause_s = NEXT_RUN_AFTER_S * 2 ** (len(tried) - 1)
    if ended_at is not None and lifecycle.world.clock().timestamp() - ended_at < pause_s:
        return None
    return dg.RunRequest(
        run_key=f"incident-{incident.id}-{asked + 1}",
        tags={PROCESSOR_TAG: name, INCIDENT_TAG: str(incident.id)},
        run_config=dg.RunConfig(ops={"recover_one": RecoverConfig(processor=name, incident=incident.id)}),
    )


@dg.run_failure_sensor(
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Logs every run that failed, with its processor and its cause.",
)
def run_failures(context: dg.RunFailureSensorContext) -> None:
    """One log event for each failed run."""
    run = context.dagster_run
    told = {"job": run.job_name, "run": run.run_id, "processor": run.tags.get(PROCESSOR_TAG)}
    log.error("run.failed", **told, cause=context.failure_event.message)


def _remembered(cursor: str | None) -> dict[str, dict[str, Any]]:
    """By processor: when its slots ``answered``, what was ``told`` when, and its ``lag``."""
    try:
        document = json.loads(cursor or "{}")
        return {name: each for name, each in document.items() if isinstance(each, dict)}
    except (ValueError, AttributeError):
        return {}


def _moments(answered: Any) -> dict[str, datetime]:
    try:
        return {slot: datetime.fromisoformat(moment) for slot, moment in answered.items()}
    except (ValueError, AttributeError, TypeError):
        return {}


def _lag(remembered: Any) -> Lag | None:
    try:
        records, since = remembered
        return Lag(int(records), float(since))
    except (ValueError, TypeError):
        return None


def _telemetry(stores: dict[str, tuple[str, ...]]) -> dg.SensorDefinition:
    @dg.sensor(
        minimum_interval_seconds=TELEMETRY_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports lag, throughput and tasks of every deployed processor as observations of its assets.",
    )
    def processor_telemetry(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult:
        limits = Limits(stuck_after_s=load_settings().stuck_after_s)
        before: dict[str, Any] = json.loads(context.cursor or "{}")
        events: list[dg.AssetObservation] = []
        after: dict[str, Any] = {}
        lags: dict[str, int | float] = {}
        deployments = [
            each for each in lifecycle.registry.deployments() if each.processor in stores and each.desired != "stopped"
        ]
        world = look_at_all(lifecycle.world, deployments)
        for name in (each.processor for each in deployments):
            try:
                seen = observe(name, world, limits)
            except HoldfastError as failed:
                context.log.warning(f"{name} could not be looked at: {failed}")
                continue
            statuses = [each.status for each in seen.values() if each.status is not None]
            facts, after[name] = _facts(statuses, before.get(name))
            events.append(dg.AssetObservation(keys.processor_key(name), metadata=facts))
            if "lag_records" in facts:
                lags[name] = facts["lag_records"]
        all_states = [(each.processor, store) for each in deployments for store in stores[each.processor]]
        states, after[_NEXT_STATE] = turn(sorted(all_states), before.get(_NEXT_STATE))
        known = [(name, store) for name, store in states if name in lags]
        events += [dg.AssetObservation(keys.state_key(*one), metadata={"lag_records": lags[one[0]]}) for one in known]
        return dg.SensorResult(
            asset_events=events, skip_reason=f"{len(events)} observations reported.", cursor=json.dumps(after)
        )

    return processor_telemetry


def turn(states: list[tuple[str, str]], first: Any) -> tuple[list[tuple[str, str]], list[str]]:
    """The states that are told of in this tick, and where the next one goes on."""
    start = next((number for number, one in enumerate(states) if list(one) >= first), 0) if first else 0
    ordered = states[start:] + states[:start]
    rest = ordered[STATES_PER_TICK:]
    return ordered[:STATES_PER_TICK], list(rest[0]) if rest else []


def _facts(statuses: list[ProcessorStatus], before: Any) -> tuple[dict[str, int | float], dict[str, Any]]:
    """Plottable figures of one processor, and what the next look needs to make rates of them."""
    tasks = [task for status in statuses for task in status.tasks]
    lags = [at.lag for task in tasks for at in task.inputs.values()]
    processed = sum(int(getattr(status, "records", {}).get("processed", 0)) for status in statuses)
    at = max((status.heartbeat_at for status in statuses), default=0.0)
    started = max((status.started_at for status in statuses), default=0.0)
    facts: dict[str, int | float] = {
        "instances": len(statuses),
        "tasks_running": sum(task.phase == "running" for task in tasks),
        "records_processed": processed,
    }
    known = [lag for lag in lags if lag is not None]
    if lags and len(known) == len(lags):
        facts["lag_records"] = sum(known)
    if before and before.get("started") == started and at > before.get("at", at):
        facts["records_per_s"] = round((processed - before["processed"]) / (at - before["at"]), 2)
    return facts, {"processed": processed, "at": at, "started": started}
