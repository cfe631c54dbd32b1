"""A deploy decides from the workers' statuses alone whether the new version sends too many dead letters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.watch import Counted, counted, puts_aside

QUIET = Counted(0, 0)


@pytest.mark.parametrize(
    ("former", "processed", "aside", "fails"),
    [
        (QUIET, 60, 60, True),
        (QUIET, 60, 30, True),
        (QUIET, 60, 29, False),
        (QUIET, 0, 0, False),
        (Counted(1_000, 10), 60, 60, True),
        (Counted(1_000, 900), 60, 60, False),
    ],
)
def test_half_of_the_messages_in_dead_letters_fails_what_did_not_do_so_before(
    make_status: Callable[..., ProcessorStatus], former: Counted, processed: int, aside: int, fails: bool
) -> None:
    statuses = {"0": make_status(records={"processed": processed, "dead_lettered": aside})}
    assert (puts_aside(former, statuses, ["0"]) is not None) is fails
    assert puts_aside(former, statuses, []) is None, "it ran before the deploy"


def test_counts_are_those_of_all_workers(make_status: Callable[..., ProcessorStatus]) -> None:
    one = make_status(records={"processed": 3, "dead_lettered": 2})
    assert counted([one, None, one, make_status()]) == Counted(6, 4)
