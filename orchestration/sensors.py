"""Sensors: one asks for recovery (runs, no events), one tells how processors are (events, no runs).

Invariants:
    - A tick does no work: it looks, with short timeouts, and asks for a run.
    - One incident gets one run at most from each attempt of the sensor: its run key is the incident.
"""

import json
from datetime import datetime
from typing import Any

import dagster as dg

from assets import keys
from infra.errors import HoldfastError
from infra.settings import load_settings
from orchestration.jobs.recover_processor import INCIDENT_TAG, PROCESSOR_TAG, RecoverConfig, recover_processor
from orchestration.resources import LifecycleResource
from processors.lifecycle.diagnosis import Limits
from processors.lifecycle.ports import ProcessorStatus
from processors.lifecycle.recovery import Notice, notice, observe

RECOVERY_EVERY_S = 10
TELEMETRY_EVERY_S = 60


def build_sensors(stores: dict[str, tuple[str, ...]], *, recovery_enabled: bool) -> list[dg.SensorDefinition]:
    """The sensors over these processors (processor -> its stores)."""
    return [_recovery(recovery_enabled), _telemetry(stores)]


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
            request = _request(context, name, seen)
            if request is not None:
                requests.append(request)
        cursor = json.dumps(answered)
        if requests:
            return dg.SensorResult(run_requests=requests, cursor=cursor)
        return dg.SensorResult(skip_reason=" ".join(said) or "Nothing is deployed.", cursor=cursor)

    return processor_recovery


def _request(context: dg.SensorEvaluationContext, name: str, seen: Notice) -> dg.RunRequest | None:
    """A run for the processor's open incident, unless one was asked for; a run key is taken only once."""
    incident = seen.incident
    if incident is None:
        return None
    if seen.opened:
        context.log.warning(f"Incident {incident.id}: {name} is {seen.worst.kind}. {seen.worst.sentence}")
    return dg.RunRequest(
        run_key=f"incident-{incident.id}",
        tags={PROCESSOR_TAG: name, INCIDENT_TAG: str(incident.id)},
        run_config=dg.RunConfig(ops={"recover_one": RecoverConfig(processor=name, incident=incident.id)}),
    )


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
