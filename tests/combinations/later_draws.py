"""Changes of a drawn topology with random sources of their own, so that they shift no other draw of its seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.combinations.grammar import COLUMNS
from tests.combinations.scope import Scope
from tests.combinations.topology import Line, has_outer_rows

#: How many topologies have steps by columns.
COLUMNS_SHARE = 0.25
#: How many topologies have sinks, and values with the offset of their message.
SINKS_SHARE = 0.15


def by_the_clock(scope: Scope, line: Line, seed: int) -> Line:
    """The line; some timers are of the worker's clock, and some windows close when their inputs are silent, too.

    Not where a ``group_by`` may be: what is silent for a while may be on its way.
    """
    random = Random(f"clock of {seed}")
    by_clock, by_silence = random.random() < 0.4, random.random() < 0.4
    code = line.code.replace("Alarm", "Reminder") if by_clock else line.code
    # Silence lasts until the windows are closed, and rows without a match may be due later.
    if by_silence and not scope.groups and not has_outer_rows(scope.lines):
        code = code.replace("final('partition')", "final('partition', close_when_idle=700)")
    return replace(line, code=code)


def with_columns(scope: Scope, seed: int) -> None:
    """Steps by columns behind some streams of some topologies.

    Not behind a grouping: it is not grouped again by the same field, and with another step it is.
    """
    random = Random(f"columns of {seed}")
    if random.random() >= COLUMNS_SHARE:
        return
    plain = {each.name for each in scope.made if each.kind == "stream" and not each.odd} - scope.fields.keys()
    for at, line in enumerate(scope.lines):
        if line.name in plain and random.random() < 0.5:
            scope.lines[at] = replace(line, code=f"{random.choice(COLUMNS)}({line.code})")


def with_sinks_and_places(scope: Scope, seed: int) -> None:
    """Sinks beside some streams of some topologies, and the offset of their message in values of others.

    A sink before a step that waits is refused. What time sends, and no message, has no place.
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
