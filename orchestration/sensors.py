"""Sensors: one asks for recovery (runs, no events), one tells how processors are (events, no runs), one logs failures.

Invariants:
    - A tick does no work: it looks, with short timeouts, and asks for a run.
    - One incident has one run at a time; its run key is the incident and the number of the run.
    - A run that ended and left its incident open (it was killed, say) is followed by another, up to a limit.
"""

import json
from datetime import datetime
from typing import Any

import dagster as dg
import structlog

from assets import keys
from infra.errors import HoldfastError
from infra.settings import load_settings
from orchestration.jobs.recover_processor import INCIDENT_TAG, PROCESSOR_TAG, RecoverConfig, recover_processor
from orchestration.resources import LifecycleResource
from processors.lifecycle.diagnosis import Limits
from processors.lifecycle.ports import ProcessorStatus
from processors.lifecycle.recovery import notice, observe

RECOVERY_EVERY_S = 10
TELEMETRY_EVERY_S = 60
#: So many runs may end without closing their incident; then it is closed as failed.
RUNS_PER_INCIDENT = 3
#: How long after such a run the next one is asked for, seconds; doubled for each further one.
NEXT_RUN_AFTER_S = 30.0

log = structlog.get_logger(__name__)


def build_sensors(stores: dict[str, tuple[str, ...]], *, recovery_enabled: bool) -> list[dg.SensorDefinition]:
    """The sensors over these processors (processor -> its stores)."""
    return [_recovery(recovery_enabled), _telemetry(stores), run_failures]


def _recovery(enabled: bool) -> dg.SensorDefinition:
    @dg.sensor(
        job=recover_processor,
        minimum_interval_seconds=RECOVERY_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING if enabled else dg.DefaultSensorStatus.STOPPED,
        description="Looks at every deployed processor; files one incident for a dead or stuck one and asks for one "
        "recovery run.",
    )
    def processor_recovery(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult:
        settings = load_settings()
        limits = Limits(stuck_after_s=settings.stuck_after_s)
        remembered = _remembered(context.cursor)
        requests: list[dg.RunRequest] = []
        said: list[str] = []
        answered: dict[str, dict[str, str]] = {}
        waiting = {incident.processor: incident for incident in lifecycle.registry.open_incidents()}
        for deployment in lifecycle.registry.deployments():
            if deployment.desired != "deployed":
                said.append(f"{deployment.processor}: {deployment.desired}")
                continue
            name = deployment.processor
            try:
                seen = notice(name, lifecycle.world, limits, answered_at=remembered.get(name))
            except HoldfastError as failed:
                context.log.warning(f"{name} could not be looked at: {failed}")
                said.append(f"{name}: {failed.message}")
                continue
            answered[name] = {slot: moment.isoformat() for slot, moment in seen.answered_at.items()}
            said.append(f"{name}: {seen.worst.sentence}")
            if seen.opened:
                context.log.warning(f"{name} is {seen.worst.kind}: an incident was opened.")
            # the processor may be well again while the run that should have closed its incident is gone
            incident = seen.incident or waiting.get(name)
            request = None if incident is None else _request(context, lifecycle, incident.id)
            if request is not None:
                requests.append(request)
        cursor = json.dumps(answered)
        if requests:
            return dg.SensorResult(run_requests=requests, cursor=cursor)
        return dg.SensorResult(skip_reason=" ".join(said) or "Nothing is deployed.", cursor=cursor)

    return processor_recovery


def _request(
    context: dg.SensorEvaluationContext, lifecycle: LifecycleResource, incident_id: int
) -> dg.RunRequest | None:
    """A run for an open incident, unless one is on its way, works on it, or enough have tried."""
    registry = lifecycle.registry
    records = context.instance.get_run_records(dg.RunsFilter(tags={INCIDENT_TAG: str(incident_id)}))
    runs = [record.dagster_run for record in records]
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
    if len(runs) >= RUNS_PER_INCIDENT:
        reason = f"{len(runs)} runs ended and left it open; the last is {runs[0].run_id}"
        registry.close_incident(incident.id, "failed", lifecycle.world.clock(), reason=reason)
        context.log.error(f"Incident {incident.id} of {name} failed: {reason}")
        return None
    ended_at = max((each.end_time or each.update_timestamp.timestamp() for each in records), default=None)
    pause_s = NEXT_RUN_AFTER_S * 2 ** (len(runs) - 1)
    if ended_at is not None and lifecycle.world.clock().timestamp() - ended_at < pause_s:
        return None
    return dg.RunRequest(
        run_key=f"incident-{incident.id}-{len(runs) + 1}",
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


def _remembered(cursor: str | None) -> dict[str, dict[str, datetime]]:
    try:
        document: dict[str, dict[str, str]] = json.loads(cursor or "{}")
        return {
            name: {slot: datetime.fromisoformat(moment) for slot, moment in slots.items()}
            for name, slots in document.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}


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
        for deployment in lifecycle.registry.deployments():
            name = deployment.processor
            if name not in stores or deployment.desired == "stopped":
                continue
            try:
                seen = observe(name, lifecycle.world, limits)
            except HoldfastError as failed:
                context.log.warning(f"{name} could not be looked at: {failed}")
                continue
            statuses = [each.status for each in seen.values() if each.status is not None]
            facts, after[name] = _facts(statuses, before.get(name))
            events.append(dg.AssetObservation(keys.processor_key(name), metadata=facts))
            if "lag_records" in facts:
                lag = {"lag_records": facts["lag_records"]}
                events += [dg.AssetObservation(keys.state_key(name, store), metadata=lag) for store in stores[name]]
        return dg.SensorResult(
            asset_events=events, skip_reason=f"{len(events)} observations reported.", cursor=json.dumps(after)
        )

    return processor_telemetry


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
