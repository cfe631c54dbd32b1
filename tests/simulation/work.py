"""Chooses the workload of a schedule, and the checks that belong to it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from holdfast.processors.testing.cluster import InMemoryCluster
from tests.simulation.called import CalledCheck, CalledWorkload, called
from tests.simulation.grouped import GroupedCheck, GroupedWorkload, grouped_workload
from tests.simulation.joined import JoinedCheck, JoinedWorkload, joined_workload
from tests.simulation.schedule import Schedule
from tests.simulation.scheduled import ScheduledCheck, ScheduledWorkload, scheduled
from tests.simulation.sourced import SourcedCheck, SourcedHistory, SourcedWorkload, sourced_workload
from tests.simulation.timed import TimedWorkload, timed_workload
from tests.simulation.timed_verifier import TimedCheck
from tests.simulation.verifier import FinalCheck, History, Seen
from tests.simulation.workload import INPUT, SECOND, Workload, aggregated, apart, dated, draw_workload, expect


def workload_of(schedule: Schedule, random: Random) -> Workload:
    """The messages of a schedule, with the processor that handles them."""
    if schedule.timed:
        return timed_workload(schedule)
    if schedule.grouped:
        return grouped_workload(schedule)
    if schedule.joins:
        return joined_workload(schedule)
    if schedule.sourced:
        return sourced_workload(schedule)
    workload = draw_workload(
        random,
        schedule.partitions,
        schedule.stores,
        exactly_once=schedule.exactly_once,
        dead_letters=schedule.dead_letters,
    )
    inputs = (INPUT, SECOND)[: schedule.inputs]
    # This draw has its own random generator, so that the other draws of a seed do not change.
    codecs = Random(f"codecs of {schedule.seed}").choices(("json", "msgpack", "typed"), (3, 1, 2), k=2)
    workload = replace(dated(workload, schedule.past), inputs=inputs, form=schedule.form, codecs=(codecs[0], codecs[1]))
    if schedule.regroups_at:
        workload = apart(workload)
    if schedule.scheduled:
        return scheduled(workload)
    if schedule.called:
        return called(workload, schedule.seed)
    return aggregated(workload) if schedule.aggregated else workload


def history_of(cluster: InMemoryCluster, workload: Workload) -> History:
    """The record of everything that is committed to the changelogs."""
    history = (SourcedHistory if isinstance(workload, SourcedWorkload) else History)(cluster, workload)
    if isinstance(workload, CalledWorkload):
        workload.service.watch(cluster, history)
    return history


def final_check(cluster: InMemoryCluster, workload: Workload, history: History, seen: Seen) -> FinalCheck:
    """The check of the workload's final state."""
    if isinstance(workload, TimedWorkload):
        return TimedCheck(cluster, workload, history, seen)
    if isinstance(workload, GroupedWorkload):
        return GroupedCheck(cluster, workload, history, seen)
    if isinstance(workload, JoinedWorkload):
        return JoinedCheck(cluster, workload, history, seen)
    if isinstance(workload, SourcedWorkload):
        return SourcedCheck(cluster, workload, history, seen)
    if isinstance(workload, ScheduledWorkload):
        return ScheduledCheck(cluster, workload, expect(workload), history, seen)
    if isinstance(workload, CalledWorkload):
        return CalledCheck(cluster, workload, expect(workload), history, seen)
    return FinalCheck(cluster, workload, expect(workload), history, seen)
