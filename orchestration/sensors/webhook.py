"""The sensor ``notifications``: posts incidents, failed runs, and problems that need a person, to the webhook.

``processors.lifecycle.recovery.messages.webhook_messages`` writes the messages and decides when to send them.
``infra.webhook`` posts the messages.

Invariants:
    - Recovery never waits for the webhook, because this sensor only reads Holdfast's registry and Dagster's runs.
    - The cursor holds the ids of sent messages, and is stored in Dagster's storage after each message. Dagster itself
      stores a sensor's cursor only at the successful end of a tick, so a killed tick would send its messages again.
    - The next tick sends the messages again that the webhook did not accept.
    - The webhook's URL is in no log, error or cursor, because it contains a token.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import dagster as dg

from holdfast.assets.keys import PROCESSOR_TAG
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.system.sizes import room_of
from holdfast.infra.webhook import TIMEOUT_S, Answer, post, shown
from holdfast.orchestration.host import local
from holdfast.orchestration.host.run_time_limits import overdue_words
from holdfast.orchestration.jobs.failures import own_words
from holdfast.orchestration.jobs.recover_processor import INCIDENT_TAG
from holdfast.orchestration.project.unloaded import read_broken, read_unloaded
from holdfast.orchestration.resources import LifecycleResource
from holdfast.orchestration.sensors.apart import SKIPPED, must_skip
from holdfast.orchestration.view import reasons
from holdfast.processors.lifecycle.deploy.observing_all import look_at_all
from holdfast.processors.lifecycle.ports import now_utc
from holdfast.processors.lifecycle.recovery.lagging import Lag
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.messages import state_messages, webhook_messages
from holdfast.processors.lifecycle.recovery.messages.webhook_messages import (
    Cursor,
    Need,
    Notification,
    Outbox,
    SeenNeed,
)
from holdfast.processors.lifecycle.recovery.processor_now import applies_beside, processor_now

NOTIFY_EVERY_S = 15
#: Maximum number of incidents that a tick reads, newest first.
INCIDENTS_MAX = 200
#: Maximum number of failed runs that a tick reads.
RUNS_MAX = 50
#: Key under which Dagster's storage keeps this sensor's cursor.
STORED = "holdfast/notifications"


def notifications_sensor(*, enabled: bool, apart: bool = False) -> dg.SensorDefinition:
    """The sensor ``notifications``.

    ``enabled`` is whether it is switched on in a new Dagster instance. ``apart`` is True for the copy in the code
    location `recovery` (``sensors.apart``).
    """

    @dg.sensor(
        minimum_interval_seconds=NOTIFY_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING if enabled else dg.DefaultSensorStatus.STOPPED,
        description="Posts opened, resolved and failed incidents, failed runs, and states that need a person, to the "
        "webhook. Retries while the webhook does not answer.",
    )
    def notifications(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult:
        if must_skip(context.instance, "notifications", apart=apart):
            return dg.SensorResult(skip_reason=SKIPPED, cursor=context.cursor)
        settings = load_settings()
        if settings.webhook.url is None:
            return dg.SensorResult(skip_reason="No webhook is configured; set `HOLDFAST_WEBHOOK__URL`.")
        known = _stored(context)
        outbox = Outbox() if known is None else known.outbox
        position = _newest_failure(context.instance) if known is None else known.failures_after
        before, is_readable = known or Cursor(Outbox(), 0), True
        former, lags = before.states, before.lags
        try:
            incidents = _of_incidents(lifecycle)
            states, lags = _states(lifecycle, settings, former, lags)
        # If Holdfast's registry does not answer, the messages that do not need it are still sent.
        except HoldfastError as failed:
            context.log.warning(f"Incidents could not be read: {failed}")
            incidents, is_readable = [], False
            needs = [*_needs_of_machine(settings), state_messages.need_of_registry(failed)]
            of_processors = (each.need for each in former.values() if each.need.processor is not None)
            unread = {state_messages.BROKER, *(each.subject for each in of_processors)}
            states = state_messages.follow(former, needs, unread, now_utc())
        else:
            # In the first tick, all messages about ended incidents count as sent, so that old incidents are not posted.
            if known is None:
                outbox = Outbox(frozenset(each.id for pair in incidents if len(pair) > 1 for each in pair))
        runs = _failed_runs(context.instance, position)
        found = [each for pair in incidents for each in pair] + [message for _, message in runs if message]
        repeat = timedelta(hours=settings.webhook.repeat_hours)
        found += state_messages.messages_of(states, repeat, now_utc())
        pending = webhook_messages.waiting(outbox, found, now_utc())
        _store(context, Cursor(outbox, position, states, lags))
        sending = webhook_messages.deliver(
            outbox,
            pending,
            lambda one: _send(one, settings),
            now_utc,
            keep=lambda so_far: _store(context, Cursor(so_far, position, states, lags)),
        )
        _report(context, settings, sending)
        left = {each.id for each in pending} - sending.outbox.told
        for reached, message in runs:
            if message is not None and message.id in left:
                break
            position = reached
        after = sending.outbox
        # Ids of messages that can't come again are forgotten. If Holdfast's registry can't be read, the messages of
        # incidents are unknown, so all ids are kept.
        if is_readable:
            after = webhook_messages.forget(after, [each.id for each in found])
        cursor = Cursor(after, position, states, lags)
        _store(context, cursor)
        sentence = f"{len(sending.accepted)} sent, {len(left)} waiting. {sending.failure}".strip()
        return dg.SensorResult(skip_reason=sentence, cursor=webhook_messages.encoded(cursor))

    return notifications


def _states(
    lifecycle: LifecycleResource, settings: Settings, known: Mapping[str, SeenNeed], before: Mapping[str, Lag]
) -> tuple[dict[str, SeenNeed], dict[str, Lag]]:
    """Problems that need a person: those known from the last tick, updated with the facts of this tick.

    The problems of a processor whose status can't be read stay unchanged. The second result has the processors' lags,
    which the next tick gets as ``before``.
    """
    needs, unread, limits = _needs_of_machine(settings), set[str](), Limits(stuck_after_s=settings.stuck_after_s)
    lags: dict[str, Lag] = {}
    deployments = lifecycle.registry.deployments()
    world = look_at_all(lifecycle.world, deployments)
    for name in (each.processor for each in deployments):
        try:
            now = processor_now(name, world, limits, before=before.get(name))
        except Exception as failed:  # An error about one processor must not stop the reports about other processors.
            unread |= {name, state_messages.BROKER}
            needs.append(state_messages.need_of_unread(name, failed))
            continue
        is_open = now.incident is not None and now.incident.is_open
        need = state_messages.need_of(name, now.answer, is_open=is_open)
        needs += [] if need is None else [need]
        lags |= {} if now.lag is None else {name: now.lag}
    beside = applies_beside(lifecycle.world, {each.processor for each in deployments})
    found = (state_messages.need_of(begun.processor, answer, is_open=False) for begun, answer in beside)
    needs += [need for need in found if need is not None]
    return state_messages.follow(known, state_messages.without_repeats(needs), unread, now_utc()), lags


def _needs_of_machine(settings: Settings) -> list[Need]:
    """Problems that need a person and are found without the registry: full disk, code that can't be loaded."""
    percent = room_of(settings.paths.home).free_percent
    disk = state_messages.need_of_disk(percent, settings.upkeep.room_min_percent, str(settings.paths.home))
    needs = [] if disk is None else [disk]
    needs += [
        state_messages.need_of_code(each.subject, each.reason, each.action)
        for each in reasons.of_locations(read_unloaded(settings))
    ]
    needs += [
        state_messages.need_of_code(f"definition {target}", told["sentence"], told["action"])
        for target, told in read_broken(settings).items()
    ]
    return needs


def _stored(context: dg.SensorEvaluationContext) -> Cursor | None:
    """The cursor that was stored last, even by a killed tick; None at the first tick."""
    stored = context.instance.daemon_cursor_storage.get_cursor_values({STORED}).get(STORED)
    return webhook_messages.decoded(stored) or webhook_messages.decoded(context.cursor)


def _store(context: dg.SensorEvaluationContext, cursor: Cursor) -> None:
    context.instance.daemon_cursor_storage.set_cursor_values({STORED: webhook_messages.encoded(cursor)})


def _of_incidents(lifecycle: LifecycleResource) -> list[tuple[Notification, ...]]:
    """The messages of each incident, oldest incident first: about its opening and, if it has ended, its end."""
    found = {incident.id: incident for incident in lifecycle.registry.incidents(INCIDENTS_MAX)}
    found |= {incident.id: incident for incident in lifecycle.registry.open_incidents()}
    return [webhook_messages.of_incident(found[number]) for number in sorted(found)]


def _newest_failure(instance: dg.DagsterInstance) -> int:
    records = instance.fetch_run_status_changes(dg.DagsterEventType.RUN_FAILURE, limit=1).records
    return records[0].storage_id if records else 0


def _failed_runs(instance: dg.DagsterInstance, after: int) -> list[tuple[int, Notification | None]]:
    """The failed runs after position ``after`` of Dagster's log: the position and the message of each run, in order.

    The message of a recovery run is None, because the run's incident has a message.
    """
    wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=after)
    records = instance.fetch_run_status_changes(wanted, limit=RUNS_MAX, ascending=True).records
    if not records:
        return []
    wanted_runs = dg.RunsFilter(run_ids=[record.run_id for record in records])
    runs = {run.run_id: run for run in instance.get_runs(wanted_runs)}
    found = []
    for record in records:
        run, message = runs.get(record.run_id), None
        if run is not None and INCIDENT_TAG not in run.tags:
            message = webhook_messages.of_failed_run(
                run.run_id,
                run.job_name,
                overdue_words(run.run_id, run.job_name, run.tags) or _cause(instance, record),
                datetime.fromtimestamp(record.timestamp, UTC),
                processor=run.tags.get(PROCESSOR_TAG),
            )
        found.append((record.storage_id, message))
    return found


def _cause(instance: dg.DagsterInstance, failure: dg.EventLogRecord) -> str:
    """The error text of the run's first failed step; if no step failed, the text of the run's failure event."""
    for entry in instance.all_logs(failure.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
        event = entry.dagster_event
        data = None if event is None else event.step_failure_data
        if data is None:
            continue
        if data.user_failure_data is not None and data.user_failure_data.description:
            return data.user_failure_data.description
        if words := own_words(data.error):
            return words
    event = failure.event_log_entry.dagster_event
    return (None if event is None else event.message) or "No reason was recorded."


def _send(message: Notification, settings: Settings) -> Answer:
    assert settings.webhook.url is not None
    render = webhook_messages.slack if settings.webhook.kind == "slack" else webhook_messages.generic
    try:
        document = render(message, _link(message, settings))
    except Exception as failed:  # An error while one message is rendered must not block the messages after it.
        return Answer(None, f"the message cannot be written: {type(failed).__name__}: {failed}", unsendable=True)
    return post(settings.webhook.url, document, identity=message.id, timeout_s=TIMEOUT_S)


def _link(message: Notification, settings: Settings) -> str | None:
    """The URL in Dagster's UI of the run, or of the incident's list of runs; None if the UI's address is unknown."""
    webserver = local.running(settings, local.WEBSERVER)
    base = settings.webhook.dagster_url or (None if webserver is None else webserver.url)
    if base is None:
        return None
    if message.run is not None:
        return f"{base.rstrip('/')}/runs/{message.run}"
    tag = f"tag%3A{INCIDENT_TAG.replace('/', '%2F')}%3D{message.incident}"
    return f"{base.rstrip('/')}/runs?q[0]={tag}"


def _report(context: dg.SensorEvaluationContext, settings: Settings, sending: webhook_messages.Sending) -> None:
    where = shown(settings.webhook.url or "")
    for identity in sending.given_up:
        context.log.error(
            f"The webhook at {where} refused message {identity} {webhook_messages.REFUSALS_MAX} times; "
            "it is not sent again."
        )
    if sending.failure:
        context.log.warning(f"The webhook at {where}: {sending.failure}")
