"""Bugs to plant in what tells and mends: each a patch that the model of operation has to notice.

python -m tests.simulation.planted_operation       the table of the documentation
"""

from __future__ import annotations

import pytest
from sqlalchemy import text

from holdfast.infra.database import applies
from holdfast.processors.lifecycle.recovery import answer, incidents, recovery
from holdfast.processors.lifecycle.recovery import standing as standings
from tests.simulation.operation import operation_runner
from tests.simulation.planted import Planted, print_table


def _word_trusted(patch: pytest.MonkeyPatch) -> None:
    """The word of an apply outlives its end, and is trusted."""
    patch.setattr(applies, "_no_longer_deploying", lambda processor, now: text("SELECT 1"))
    patch.setattr(incidents, "wanted", lambda recorded, world: recorded)


def _live_for_ever(patch: pytest.MonkeyPatch) -> None:
    """An open apply counts as live, whatever became of its run."""
    patch.setattr(standings, "is_broken_off", lambda record: False)


def _applies_block(patch: pytest.MonkeyPatch) -> None:
    """Recovery waits for every open apply, also for one whose run is dead."""
    patch.setattr(incidents, "is_broken_off", lambda record: False)


def _two_actions(patch: pytest.MonkeyPatch) -> None:
    """The reason of an apply brings an action of its own."""
    patch.setattr(answer, "in_one_line", lambda told: told.splitlines()[0])


def _nobody_recovers(patch: pytest.MonkeyPatch) -> None:
    """An incident asks for a run, and the run changes nothing."""
    patch.setattr(recovery._Recovery, "_restart", lambda self, sick: "started nothing")


BUGS: tuple[Planted, ...] = (
    Planted("the word of an apply outlives it, and is trusted", _word_trusted),
    Planted("an open apply counts as live for ever", _live_for_ever),
    Planted("recovery waits for every open apply", _applies_block),
    Planted("the reason of an apply brings a second action", _two_actions),
    Planted("a recovery run starts nothing", _nobody_recovers),
)


def main() -> None:
    """Print the table of the bugs of operation."""
    with operation_runner() as seeds:
        print_table(seeds, BUGS, 150)


if __name__ == "__main__":
    main()
