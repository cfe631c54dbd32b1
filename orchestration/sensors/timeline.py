"""The sensor ``timeline``: reports applies (executed plans), incidents and rehearsals as events of Dagster's assets.

    registry: applies, incidents, actions ──► events that are not reported yet ──► Dagster's log, without a run

Invariants:
    - Commands write only to Holdfast's registry, so they work without Dagster. This sensor reports their actions later.
    - No event is lost, because the cursor remembers the reported records, and the registry keeps all records. If an
      older copy of the registry is put back, new records get numbers that lost records had before. So the cursor is
      then set back to the newest record that is in the copy and was in the replaced registry.
    - No event is reported twice. An event's name is stored in the cursor before the event is reported. If a tick was
      killed, the next tick finds the name, and looks in Dagster's log whether the event was reported.
"""

from collections.abc import Callable, Mapping, Sequence

import dagster as dg
import msgspec

from holdfast.assets.pages.data_versions import tags_of_deployed, tags_of_live
from holdfast.assets.pages.timeline import as_dagster, is_stored
from holdfast.assets.processors import inputs_of
from holdfast.infra.database.records import Action, ApplyRecord, Incident
from holdfast.infra.database.registry import Registry
from holdfast.infra.errors import HoldfastError
from holdfast.orchestration.resources import LifecycleResource
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.lifecycle.recovery.messages import timeline
from holdfast.processors.lifecycle.recovery.messages.timeline import Entry, Event, Record, Series

REPORT_EVERY_S = 10
#: Maximum number of records that one tick reads from each table of Holdfast's registry.
RECORDS_MAX = 200
#: Maximum number of events that one tick reports; later ticks report the rest. Dagster stores about 20 events a second.
EVENTS_PER_TICK = 40
#: Seconds between the end of an action and its report. Without this pause, an action with a smaller number would be
#: skipped if its database transaction commits later.
ACTION_SETTLES_S = 5.0
#: Key under which Dagster's storage keeps this sensor's cursor.
STORED = "holdfast/timeline"


class Cursor(msgspec.Struct):
    """The sensor's cursor: for each table of Holdfast's registry, the records that are already reported to Dagster.

    ``reporting`` is the name of the event that is being reported; empty if there is none.
    """

    applies: Series
    incidents: Series
    actions: Series
    reporting: str = ""


def timeline_sensor(definitions: Sequence[ProcessorDefinition]) -> dg.SensorDefinition:
    """The sensor ``timeline``; it ignores records of processors not in ``definitions``, because they have no asset."""
    stores = {each.name: tuple(store.name for store in each.topology.stores) for each in definitions}
    logged = {each.name: tuple(log.store for log in each.topology.changelogs) for each in definitions}
    inputs = {each.name: inputs_of(each) for each in definitions}

    def events(entries: Sequence[Entry]) -> tuple[Event, ...]:
        return tuple(
            event
            for entry in entries
            if not entry.processor or entry.processor in stores
            for event in timeline.events_of(entry, stores.get(entry.processor, ()), logged.get(entry.processor, ()))
        )

    @dg.sensor(
        name="timeline",
        minimum_interval_seconds=REPORT_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports applies, incidents and rehearsals as events of their assets: who, plan, seconds, outcome. "
        "A deploy from the command line materialises its assets.",
    )
    def report_timeline(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult:
        cursor = _stored(context.instance)
        try:
            records = _records(lifecycle.registry, cursor, lifecycle.world.clock().timestamp(), events)
        except HoldfastError as failed:
            return dg.SensorResult(skip_reason=f"The registry cannot be read: {failed}")
        told = left = 0
        for name, found in records.items():
            waiting = timeline.unreported(getattr(cursor, name), found)
            for number, event in waiting[: EVENTS_PER_TICK - told]:
                versions = _versions(event, lifecycle.registry, inputs.get(event.entry.processor, ()))
                told += _report(context.instance, cursor, name, number, event, versions)
            left += max(0, len(waiting) - EVENTS_PER_TICK)
            setattr(cursor, name, timeline.settled(getattr(cursor, name), found))
        _store(context.instance, cursor)
        return dg.SensorResult(skip_reason=f"{told} events reported, {left} waiting.")

    return report_timeline


def _versions(event: Event, registry: Registry, inputs: Sequence[dg.AssetKey]) -> Mapping[str, str]:
    """Dagster's tags for an event that materializes an asset: its data version and, for a processor, its code version.

    ``inputs`` are the assets that the processor reads; a processor's tags also have their data versions.
    """
    deployed = registry.deployment(event.entry.processor) if event.layer == "processor" else None
    return tags_of_live() if deployed is None else tags_of_deployed(deployed.code_version, inputs)


def _report(
    instance: dg.DagsterInstance, cursor: Cursor, name: str, number: int, event: Event, versions: Mapping[str, str]
) -> int:
    """Report one event unless Dagster's log already has it; returns 1 if the event was reported, otherwise 0."""
    is_there = cursor.reporting == event.identity and is_stored(instance, event)
    if not is_there:
        cursor.reporting = event.identity
        _store(instance, cursor)
        instance.report_runless_asset_event(as_dagster(event, versions))
    cursor.reporting = ""
    setattr(cursor, name, timeline.reported(getattr(cursor, name), number, event.identity))
    _store(instance, cursor)
    return int(not is_there)


def _records(
    registry: Registry, cursor: Cursor, now: float, events: Callable[[Sequence[Entry]], tuple[Event, ...]]
) -> Mapping[str, list[Record]]:
    """Table of Holdfast's registry -> its records that may have events which are not reported to Dagster yet.

    Open applies and incidents are read at each tick, because they get new events. If an older copy of the registry was
    put back, the cursor is corrected first.
    """

    def of_apply(each: ApplyRecord) -> Record:
        return Record(each.id, each.finished_at is None, events(timeline.of_apply(each)), each.started_at)

    def of_incident(each: Incident) -> Record:
        return Record(each.id, each.is_open, events(timeline.of_incident(each)), each.opened_at)

    def of_action(each: Action) -> Record:
        return Record(each.id, False, events(timeline.of_action(each)), each.started_at)

    journal = registry.journal
    cursor.applies = _present(cursor.applies, lambda *of: [of_apply(each) for each in journal.applies_after(*of)])
    cursor.incidents = _present(
        cursor.incidents, lambda *of: [of_incident(each) for each in registry.incidents_after(*of)]
    )
    cursor.actions = _present(cursor.actions, lambda *of: [of_action(each) for each in registry.actions_after(*of)])
    applies = {each.id: each for each in journal.applies_after(cursor.applies.low, RECORDS_MAX)}
    # Only open applies up to the number ``low`` are added here. Later open applies are read in the order of their
    # numbers, as above. Otherwise ``low`` could be raised past records that were not read yet.
    applies |= {each.id: each for each in journal.applies(RECORDS_MAX, open_only=True) if each.id <= cursor.applies.low}
    for number in cursor.applies.above.keys() - applies.keys():
        if (open_one := journal.apply_of(number)) is not None:
            applies[number] = open_one
    incidents = {each.id: each for each in registry.incidents_after(cursor.incidents.low, RECORDS_MAX)}
    incidents |= {each.id: each for each in registry.open_incidents() if each.id <= cursor.incidents.low}
    for number in cursor.incidents.above.keys() - incidents.keys():
        if (again := registry.incident(number)) is not None:
            incidents[number] = again
    actions = registry.actions_after(cursor.actions.low, RECORDS_MAX)
    young = (n for n, each in enumerate(actions) if abs(now - each.finished_at.timestamp()) < ACTION_SETTLES_S)
    actions = actions[: next(young, len(actions))]
    return {
        "applies": [of_apply(each) for _, each in sorted(applies.items())],
        "incidents": [of_incident(each) for _, each in sorted(incidents.items())],
        "actions": [of_action(each) for each in actions],
    }


def _present(series: Series, after: Callable[[int, int], Sequence[Record]]) -> Series:
    """The progress ``series`` for the present registry: corrected if an older copy of the registry was put back.

    ``after(number, limit)`` reads the first ``limit`` records after a number.
    """
    at_low = next((each for each in after(series.low - 1, 1) if each.number == series.low), None)
    if timeline.is_replaced(series, at_low):
        return timeline.after_replacement(series, [each for each in after(0, series.low) if each.number <= series.low])
    return Series(series.low, series.above, None if at_low is None else at_low.began)


def _stored(instance: dg.DagsterInstance) -> Cursor:
    """The cursor that was stored last, even by a killed tick; an empty cursor in a new Dagster instance."""
    text = instance.daemon_cursor_storage.get_cursor_values({STORED}).get(STORED)
    try:
        return msgspec.json.decode(text or "", type=Cursor)
    except msgspec.MsgspecError:
        return Cursor(Series(), Series(), Series())


def _store(instance: dg.DagsterInstance, cursor: Cursor) -> None:
    instance.daemon_cursor_storage.set_cursor_values({STORED: msgspec.json.encode(cursor).decode()})
