"""The sensor that tells people outside of Dagster of incidents and failed runs, through the webhook of the settings.

Invariants:
    - Recovery knows nothing of it: it reads what the registry and Dagster hold anyway, in a tick of its own.
    - What was told is in its cursor; a message that could not be sent is found again by the next tick.
    - The webhook's URL is in no log, error or cursor.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.webhook import TIMEOUT_S, Answer, post, shown
from holdfast.orchestration import local
from holdfast.orchestration.jobs.recover_processor import INCIDENT_TAG, PROCESSOR_TAG
from holdfast.orchestration.resources import LifecycleResource
from holdfast.processors.lifecycle.recovery import notifications as told
from holdfast.processors.lifecycle.recovery.notifications import Notification, Outbox

NOTIFY_EVERY_S = 15
#: So many of the newest incidents can still be told of.
INCIDENTS_MAX = 200
#: So many failed runs are looked at in one tick.
RUNS_MAX = 50


@dataclass(frozen=True, slots=True)
class _FailedRun:
    """One event of Dagster's log; ``message`` is None for a run that is told of otherwise."""

    position: int
    message: Notification | None


def notifications_sensor(*, enabled: bool) -> dg.SensorDefinition:
    """The sensor; it starts switched on where a webhook is configured."""

    @dg.sensor(
        minimum_interval_seconds=NOTIFY_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING if enabled else dg.DefaultSensorStatus.STOPPED,
        description="Tells the webhook of incidents that were opened, mended or given up, and of runs that failed; "
        "one that is away is tried again.",
    )
    def notifications(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult:
        settings = load_settings()
        if settings.webhook.url is None:
            return dg.SensorResult(skip_reason="No webhook is configured: HOLDFAST_WEBHOOK__URL is not set.")
        outbox, position, first = _remembered(context.cursor)
        if first:
            position = _newest_failure(context.instance)
        try:
            incidents = _of_incidents(lifecycle)
        except HoldfastError as failed:
            context.log.warning(f"Incidents could not be read: {failed}")
            return dg.SensorResult(skip_reason=failed.message, cursor=context.cursor)
        if first:  # what ended before anybody wanted to be told is no news
            outbox = Outbox(frozenset(each.id for pair in incidents if len(pair) > 1 for each in pair))
        runs = _failed_runs(context.instance, position)
        messages = [each for pair in incidents for each in pair] + [run.message for run in runs if run.message]
        pending = told.waiting(outbox, messages, lifecycle.world.clock())
        sending = told.deliver(outbox, pending, lambda one: _send(one, settings), lifecycle.world.clock)
        _report(context, settings, sending)
        left = {each.id for each in pending} - sending.outbox.told
        for run in runs:
            if run.message is not None and run.message.id in left:
                break
            position = run.position
        known = [each.id for each in messages]
        cursor = told.encoded(told.forget(sending.outbox, known), failures_after=position)
        sentence = f"{len(sending.accepted)} told, {len(left)} waiting. {sending.failure}".strip()
        return dg.SensorResult(skip_reason=sentence, cursor=cursor)

    return notifications


def _remembered(cursor: str | None) -> tuple[Outbox, int, bool]:
    """What was told, the last failed run that was dealt with, and whether this is the first tick."""
    try:
        document = json.loads(cursor or "{}")
        return told.from_data(document["outbox"]), int(document["failures_after"]), False
    except (ValueError, KeyError, TypeError):
        return Outbox(), 0, True


def _of_incidents(lifecycle: LifecycleResource) -> list[tuple[Notification, ...]]:
    """By incident, oldest first."""
    found = {incident.id: incident for incident in lifecycle.registry.incidents(INCIDENTS_MAX)}
    found |= {incident.id: incident for incident in lifecycle.registry.open_incidents()}
    return [told.of_incident(found[number]) for number in sorted(found)]


def _newest_failure(instance: dg.DagsterInstance) -> int:
    records = instance.fetch_run_status_changes(dg.DagsterEventType.RUN_FAILURE, limit=1).records
    return records[0].storage_id if records else 0


def _failed_runs(instance: dg.DagsterInstance, after: int) -> Sequence[_FailedRun]:
    """Failed runs after that position, in order."""
    wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=after)
    records = instance.fetch_run_status_changes(wanted, limit=RUNS_MAX, ascending=True).records
    if not records:
        return []
    wanted_runs = dg.RunsFilter(run_ids=[record.run_id for record in records])
    runs = {run.run_id: run for run in instance.get_runs(wanted_runs)}
    found = []
    for record in records:
        run, message = runs.get(record.run_id), None
        # a recovery's end is told with its incident
        if run is not None and INCIDENT_TAG not in run.tags:
            message = told.of_failed_run(
                run.run_id,
                run.job_name,
                _cause(instance, record),
                datetime.fromtimestamp(record.timestamp, UTC),
                processor=run.tags.get(PROCESSOR_TAG),
            )
        found.append(_FailedRun(record.storage_id, message))
    return found


def _cause(instance: dg.DagsterInstance, failure: dg.EventLogRecord) -> str:
    """Why a run failed: what its first failed step says, or else the run's own last word."""
    for entry in instance.all_logs(failure.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
        event = entry.dagster_event
        data = None if event is None else event.step_failure_data
        if data is None:
            continue
        if data.user_failure_data is not None and data.user_failure_data.description:
            return data.user_failure_data.description
        error = data.error
        while error is not None and error.cause is not None:
            error = error.cause
        if error is not None:
            return error.message
    event = failure.event_log_entry.dagster_event
    return (None if event is None else event.message) or "No reason was recorded."


def _send(message: Notification, settings: Settings) -> Answer:
    assert settings.webhook.url is not None
    render = told.slack if settings.webhook.kind == "slack" else told.generic
    document = render(message, _link(message, settings))
    return post(settings.webhook.url, document, identity=message.id, timeout_s=TIMEOUT_S)


def _link(message: Notification, settings: Settings) -> str | None:
    """Where in Dagster's UI it is told in full."""
    webserver = local.running(settings, local.WEBSERVER)
    base = settings.webhook.dagster_url or (None if webserver is None else webserver.url)
    if base is None:
        return None
    if message.run is not None:
        return f"{base.rstrip('/')}/runs/{message.run}"
    tag = f"tag%3A{INCIDENT_TAG.replace('/', '%2F')}%3D{message.incident}"
    return f"{base.rstrip('/')}/runs?q[0]={tag}"


def _report(context: dg.SensorEvaluationContext, settings: Settings, sending: told.Sending) -> None:
    where = shown(settings.webhook.url or "")
    for identity in sending.given_up:
        context.log.error(f"The webhook at {where} refused {identity} {told.REFUSALS_MAX} times; it is given up.")
    if sending.failure:
        context.log.warning(f"The webhook at {where}: {sending.failure}")
