"""Checks the rules that must hold after each round, and writes the report of a round."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime

import msgspec
from dagster import DagsterEventType

from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.requests import Clear, Keys
from tests.dagster.rounds.effects import last_counts, wrong_counts
from tests.dagster.rounds.history import Held, broken_rules, holds_of
from tests.dagster.rounds.installation import Installation
from tests.dagster.rounds.play import Round

_SPAWNED = re.compile(r"^(\S+ \S+),(\d+) INFO spawned: ")
#: Dagster writes this text to the log for each process that it starts for a run.
_LAUNCHED = "Started process for run"


def judged(round_: Round) -> list[str]:
    """All violations of the rules after a round, one line each."""
    here = round_.here
    found = broken_rules(round_.events, lambda holder: holder in round_.killed)
    found += _starts_without_hold(here, holds_of(round_.events), round_)
    found += _twice_launched(round_)
    here.feeder.stop()
    here.feeder.row()
    here.feeder.stop()
    here.operated.processed(sum(here.feeder.sent.values()))
    here.outputs.read()
    found += wrong_counts(here.feeder.sent, here.outputs.counts, clears_of(here))
    state, published = here.operated.logged(), last_counts(here.outputs.counts)
    if state != published:
        found.append(f"the changelog has {state}, the output {published}")
    for audit in here.operated.verbs.audit(here.operated.group, ()):
        found += [f"store and changelog differ: {each}" for each in audit.differences]
    for each in here.registry.incidents(20, processor=here.operated.group):
        if each.outcome == "failed" and ("incident", each.id) in {(event.kind, event.id) for event in round_.events}:
            found.append(f"incident {each.id} failed: {each.reason}")
    here.feeder.start()
    return found


def clears_of(here: Installation) -> Counter[str]:
    """How often each key was cleared, according to the applies (executed commands) in Holdfast's database."""
    found: Counter[str] = Counter()
    for each in here.registry.journal.applies(10_000, processor=here.operated.group):
        request = plans.decode(each.plan).request
        if each.outcome != "done" or not isinstance(request, Clear):
            continue
        named = request.selection.keys if isinstance(request.selection, Keys) else tuple(here.feeder.partition)
        found.update(key for key in named if not request.partitions or here.feeder.partition[key] in request.partitions)
    return found


def starts_of(here: Installation, since: float) -> list[float]:
    """Return the times at which the supervisor started a worker, in seconds since the epoch, not before ``since``."""
    found = map(_SPAWNED.match, here.supervisor_log.read_text().splitlines())
    times = [datetime.fromisoformat(each[1]).astimezone().timestamp() + int(each[2]) / 1000 for each in found if each]
    return [each for each in times if each >= since]


def _starts_without_hold(here: Installation, holds: list[Held], round_: Round) -> list[str]:
    began = round_.events[0].at if round_.events else 0.0
    return [
        f"a worker was started at {start:.3f}, while nobody held the processor"
        for start in starts_of(here, began)
        if not any(each.since <= start <= (each.until or start) for each in holds)
    ]


def _twice_launched(round_: Round) -> list[str]:
    found = []
    for run in dict.fromkeys(each.run for each in round_.runs):
        logs = round_.here.instance.all_logs(run, of_type=DagsterEventType.ENGINE_EVENT)
        launched = [each.message for each in logs if _LAUNCHED in (each.message or "")]
        if len(launched) > 1:
            found.append(f"run {run} was started {len(launched)} times: {launched}")
    return found


def described(round_: Round, seconds: float, wrong: list[str]) -> str:
    """Return the report line of a round: the events, and the draw from which the round can be repeated."""
    here, holds = round_.here, holds_of(round_.events)
    began = round_.events[0].at if round_.events else 0.0
    figures = {
        "holds": [f"{each.kind} {each.id} token {each.token}" for each in holds],
        "signs": Counter(each.kind for each in round_.events if each.holding),
        "stages": [each.word for each in round_.events if each.kind == "stage"],
        "starts": len(starts_of(here, began)),
        "runs": len({each.run for each in round_.runs}),
    }
    struck = "struck" if round_.struck_at is not None else "not reached"
    lines = [f"{round_.draw} [{struck}, {seconds:.0f} s] {msgspec.json.encode(figures).decode()}", *round_.said, *wrong]
    return "\n    ".join(lines)
