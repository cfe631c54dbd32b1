"""Judges the sources and sinks of a processor: is a source alive, and does a sink write?

    statuses of the workers ──► figures of a connector ──► judge_source, judge_sink ──► check in Dagster

Invariants:
    - The judgement is pure: it depends only on the description, the statuses of the workers and the time.
    - Unknown is never green: without an answer of a worker that has the connector's task, the judgement fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.processors.engine.connectors import ConnectorSpec, SinkFigures, SourceFigures
from holdfast.processors.engine.serving.status import ProcessorStatus

#: A refused result is told for this many seconds after the refusal.
TOLD_S = 3_600.0
#: Seconds by which the clocks of a worker and of the judge may differ.
CLOCKS_S = 5.0


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether a connector works, and a sentence with the figures.

    Attributes:
        passed: Whether it works.
        sentence: What was seen, with values.
        action: The instruction to an operator; empty if ``passed`` is true.
        warns: Whether the failure is only a warning, because the worker repeats the attempt, or the fact is unknown.
        known: False if no worker told anything of the connector.
        figures: The numbers that Dagster plots. A number that is not known is left out.
        texts: The texts of the asset's page, for example the position. A text that is not known is left out.
    """

    passed: bool
    sentence: str
    action: str = ""
    warns: bool = False
    known: bool = True
    figures: Mapping[str, int | float] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


def judge_source(processor: str, spec: ConnectorSpec, statuses: Sequence[ProcessorStatus], now: float) -> Judged:
    """Judges a source: whether it runs, and has reached its system lately. ``now`` is in seconds since 1970."""
    name = spec.name
    if (failed := _stopped_by(statuses, spec)) is not None:
        return failed
    owner, seen = next(((each, each.sources[name]) for each in statuses if name in each.sources), (None, None))
    if owner is None or seen is None:
        return _unknown(processor, statuses, f"the task of partition 0 of {spec.topics[0]}, which owns the source")
    figures, texts = _of_source(seen, now), _texts_of_source(seen)
    produced = f"{seen.produced:,} messages are committed"
    if owner.paused:
        sentence = f"Worker {owner.slot} is paused, so the source waits; {produced}."
        return Judged(
            False, sentence, f"`holdfast apply restart {processor}` ends the pause.", True, True, figures, texts
        )
    if seen.ended:
        return Judged(True, f"The source has read everything and has ended; {produced}.", figures=figures, texts=texts)
    if not seen.runs:
        why = f": {seen.failure}" if seen.failure else ""
        sentence = f"The source does not run on worker {owner.slot}, which owns its task{why}; {produced}."
        # Without a failure, the source was not started yet, for example while a sink of its task takes nothing.
        action = f"Read `holdfast logs {processor}`."
        return Judged(False, sentence, action, not seen.failure, figures=figures, texts=texts)
    if seen.fails:
        sentence = f"The source can't reach its system: {seen.failure.rstrip('.')}. {_last_report(seen, now)}"
        action = f"Bring {_place_of(spec)} back; the source tries again by itself until its patience ends."
        return Judged(False, sentence, action, True, True, figures, texts)
    silent = None if seen.reported_at is None or seen.within_s is None else now - seen.reported_at
    if silent is not None and silent > (seen.within_s or 0.0) + CLOCKS_S:
        return Judged(*_silent(processor, spec, seen, silent), figures=figures, texts=texts)
    at = f" Position: {seen.position}." if seen.position else ""
    told = "The source runs." if seen.reported_at is None else _last_report(seen, now)
    return Judged(True, f"{told}{at} {produced[0].upper()}{produced[1:]}.", figures=figures, texts=texts)


def judge_sink(processor: str, spec: ConnectorSpec, statuses: Sequence[ProcessorStatus], now: float) -> Judged:
    """Judges a sink: whether its system took the last results. ``now`` is in seconds since 1970."""
    if (failed := _stopped_by(statuses, spec)) is not None:
        return failed
    those = [each for each in statuses if any(_runs(each, topic) for topic in spec.topics)]
    seen = [each.sinks[spec.name] for each in those if spec.name in each.sinks]
    if len(seen) < len(those) or not seen:
        return _unknown(processor, statuses, f"a task of {', '.join(spec.topics)}, whose results the sink gets")
    figures, texts = _of_sinks(spec, seen, statuses, now), dict[str, str]()
    newest = max(seen, key=lambda each: max(each.failed_at or 0.0, each.refused_at or 0.0))
    if newest.failure:
        texts["last_error"] = newest.failure
    stored_at = max((each.stored_at for each in seen if each.stored_at is not None), default=None)
    last = "nothing yet" if stored_at is None else f"the last results {_ago(now - stored_at)}"
    stored = f"{sum(each.stored for each in seen):,} results since the start, {last}"
    failing = [each for each in seen if each.fails]
    if failing:
        sentence = f"The sink takes nothing: {failing[0].failure.rstrip('.')}. It stored {stored}."
        action = f"Bring {_place_of(spec)} back; the worker tries again by itself until the sink's patience ends."
        return Judged(False, sentence, action, True, True, figures, texts)
    refused_at = max((each.refused_at for each in seen if each.refused_at is not None), default=None)
    if refused_at is not None and now - refused_at < TOLD_S:
        count = sum(each.refused for each in seen)
        sentence = f"The sink refused {count:,} results, the last {_ago(now - refused_at)}: {newest.failure}"
        action = f"Correct the value, or the rule of {_place_of(spec)}. `holdfast status {processor}` has the messages."
        return Judged(False, sentence, action, True, True, figures, texts)
    return Judged(True, f"The sink stored {stored}.", figures=figures, texts=texts)


def _silent(processor: str, spec: ConnectorSpec, seen: SourceFigures, silent: float) -> tuple[bool, str, str, bool]:
    """The verdict about a source that did not report in time: passed, sentence, action, and whether it only warns."""
    bound = f"expected a report within {seen.within_s:.0f} s"
    if seen.waiting:
        sentence = f"The source waits for a commit of {seen.waiting:,} messages since {silent:.0f} s; {bound}."
        return False, sentence, f"See `holdfast status {processor}`: the worker does not commit, or a sink waits.", True
    sentence = f"The source has not reached its system for {silent:.0f} s; {bound}."
    action = f"Check {_place_of(spec)}, then `holdfast apply restart {processor}`: the source begins at its position."
    return False, sentence, action, False


def _stopped_by(statuses: Sequence[ProcessorStatus], spec: ConnectorSpec) -> Judged | None:
    """The verdict if this source or sink has stopped a worker with an error; otherwise None."""
    for each in statuses:
        if each.error is not None and _is_of(each.error.get("fields") or {}, spec):
            said = f"The {spec.role} has stopped worker {each.slot}: {each.error.get('message', '')}"
            return Judged(False, said, str(each.error.get("action", "")))
    return None


def _is_of(fields: Mapping[str, Any], spec: ConnectorSpec) -> bool:
    """Whether an error with these fields is of this source or sink.

    The error of a sink has no number, which tells apart sinks of one name. So it is of all of them.
    """
    if spec.role == "source":
        return fields.get("source") == spec.name
    base, _, number = spec.name.rpartition("-")
    return "sink" in fields and fields.get("name") in (spec.name, base if number.isdigit() else spec.name)


def _unknown(processor: str, statuses: Sequence[ProcessorStatus], what: str) -> Judged:
    said = f"No worker runs {what}" if statuses else "No worker answers"
    return Judged(False, f"{said}, so nobody knows.", f"See `holdfast status {processor}`.", warns=True, known=False)


def _runs(status: ProcessorStatus, topic: str) -> bool:
    return any(task.phase == "running" and topic in task.inputs for task in status.tasks)


def _of_source(seen: SourceFigures, now: float) -> dict[str, int | float]:
    facts: dict[str, int | float] = {
        "produced_messages": seen.produced,
        "waiting_messages": seen.waiting,
        "failures": seen.failures,
        **{f"remaining_{unit}": count for unit, count in seen.remaining.items()},
    }
    if seen.reported_at is not None:
        facts["seconds_since_success"] = round(max(0.0, now - seen.reported_at), 1)
    return facts


def _texts_of_source(seen: SourceFigures) -> dict[str, str]:
    texts = {"position": seen.position, "last_error": seen.failure, "task": seen.task}
    return {name: text for name, text in texts.items() if text}


def _of_sinks(
    spec: ConnectorSpec, seen: Sequence[SinkFigures], statuses: Sequence[ProcessorStatus], now: float
) -> dict[str, int | float]:
    facts: dict[str, int | float] = {
        "stored_results": sum(each.stored for each in seen),
        "waiting_results": sum(each.waiting for each in seen),
        "refused_results": sum(each.refused for each in seen),
        "failures": sum(each.failures for each in seen),
    }
    parts = [each.unpublished for each in seen if each.unpublished is not None]
    if parts:
        facts["unpublished_parts"] = sum(parts)
    stored_at = max((each.stored_at for each in seen if each.stored_at is not None), default=None)
    if stored_at is not None:
        facts["seconds_since_success"] = round(max(0.0, now - stored_at), 1)
    tasks = [task for status in statuses for task in status.tasks]
    lags = [at.lag for task in tasks for topic, at in task.inputs.items() if topic in spec.topics]
    known = [lag for lag in lags if lag is not None]
    if lags and len(known) == len(lags):
        facts["lag_records"] = sum(known)
    return facts


def _last_report(seen: SourceFigures, now: float) -> str:
    if seen.reported_at is None:
        return "It has not reached its system since its start."
    return f"The source reached its system {_ago(now - seen.reported_at)}."


def _ago(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s ago"


def _place_of(spec: ConnectorSpec) -> str:
    return spec.system.place or f"the system of {spec.role} {spec.name}"
