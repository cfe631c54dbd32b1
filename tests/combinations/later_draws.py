"""Changes to a drawn topology. Each has its own random generator, so that all other draws of a seed stay unchanged."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.combinations.grammar import COLUMNS
from tests.combinations.scope import Scope
from tests.combinations.topology import Line, has_outer_rows

#: The share of topologies that get steps on columns (column expressions).
COLUMNS_SHARE = 0.25
#: The share of topologies with sinks, and with values that contain the offset of their message.
SINKS_SHARE = 0.15
#: The share of topologies in which calls of ``apply_async`` are durable.
DURABLE_SHARE = 0.5
#: The share of topologies with a staging sink, if they have one input.
STAGED_SHARE = 0.4


def by_the_clock(scope: Scope, line: Line, seed: int) -> Line:
    """Changes some lines: timers may use the worker's clock, and windows may close when their inputs are silent.

    Windows do not close by silence where a ``group_by`` is allowed, because messages of a silent input may still be on
    their way.
    """
    random = Random(f"clock of {seed}")
    by_clock, by_silence = random.random() < 0.4, random.random() < 0.4
    code = line.code.replace("Alarm", "Reminder") if by_clock else line.code
    # A silence counts only until the windows are closed, but rows without a match may be due later. So topologies with
    # such rows close no window by silence.
    if by_silence and not scope.groups and not has_outer_rows(scope.lines):
        code = code.replace("final('partition')", "final('partition', close_when_idle=700)")
    return replace(line, code=code)


def with_durable_calls(line: Line, seed: int) -> Line:
    """Makes the calls of half of the topologies durable. Kills then strike between a call and the use of its answer."""
    is_durable = Random(f"durable calls of {seed}").random() < DURABLE_SHARE
    return replace(line, code=line.code.replace("order=", "durable=True, order=")) if is_durable else line


def with_columns(scope: Scope, seed: int) -> None:
    """Adds steps with column expressions to some streams of some topologies.

    Streams behind a grouping get no such step. The engine skips a second grouping by the same field, and an added step
    would prevent that.
    """
    random = Random(f"columns of {seed}")
    if random.random() >= COLUMNS_SHARE:
        return
    plain = {each.name for each in scope.made if each.kind == "stream" and not each.odd} - scope.fields.keys()
    for at, line in enumerate(scope.lines):
        if line.name in plain and random.random() < 0.5:
            scope.lines[at] = replace(line, code=f"{random.choice(COLUMNS)}({line.code})")


def with_sinks_and_places(scope: Scope, seed: int) -> None:
    """Adds sinks to some streams of some topologies, and the message's offset to values of other streams.

    The engine refuses a sink before a step that waits. Results that come with time instead of a message have no offset.
    """
    random = Random(f"sinks of {seed}")
    if random.random() >= SINKS_SHARE:
        return
    streams = {each.name: each for each in scope.made if each.kind == "stream" and each.name not in scope.fields}
    for at, line in enumerate(scope.lines):
        stream = streams.get(line.name)
        if stream is None or random.random() < 0.5:
            continue
        if not stream.first:
            scope.lines[at] = replace(line, code=f"sunk({line.code})")
        elif not stream.odd and not stream.grouped and not stream.window:
            scope.lines[at] = replace(line, code=f"{line.code}.apply(placed)")


def with_a_staging_sink(scope: Scope, seed: int) -> None:
    """Adds a staging sink, and a topic with the same values, to one stream of some topologies with one input.

    The sink's store would join the tasks of several inputs. The names show in no result that runs compare.
    """
    random = Random(f"staging sink of {seed}")
    if random.random() >= STAGED_SHARE or sum(len(each.topics) for each in scope.tasks) != 1:
        return
    streams = {each.name for each in scope.made if each.kind == "stream" and not each.first}
    places = [at for at, line in enumerate(scope.lines) if line.name in streams - scope.fields.keys()]
    if places:
        line = scope.lines[at := random.choice(places)]
        scope.lines[at] = replace(line, code=f"staged({line.code}, app, 'lake')")
