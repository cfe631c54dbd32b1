"""What a waiting command prints about its run: the runs queued in front of it, how long it waits, and what it does."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from holdfast.orchestration.commands.reports.snapshot import REPEAT_S, RunProgress
from holdfast.orchestration.view.progress import Progress, SeenRun, blockers, progress

SPARK = frozenset({"spark"})
MINE = SeenRun("3ef4652400", "QUEUED", created_at=100.0, what="warehouse/orders/totals", pools=SPARK)
FIRST = SeenRun("8212b1f700", "STARTED", created_at=50.0, started_at=60.0, what="warehouse/orders/seen", pools=SPARK)


def test_a_queued_run_names_the_run_before_it_and_both_times() -> None:
    told = progress(MINE, [MINE, FIRST], now=112.0)
    assert told.state == (
        "run 3ef46524 is queued behind 8212b1f7 (warehouse/orders/seen): each needs the pool spark, which one run has "
        "at a time"
    )
    assert told.now == "for 12 s, behind run 8212b1f7 (warehouse/orders/seen; started 52 s ago)"


def test_runs_of_other_pools_and_later_ones_are_not_before_it() -> None:
    other = replace(FIRST, run_id="aaaaaaaa", pools=frozenset({"deploys"}))
    later = replace(FIRST, run_id="bbbbbbbb", status="QUEUED", created_at=101.0)
    earlier = replace(FIRST, run_id="cccccccc", status="QUEUED", created_at=10.0)
    assert blockers(MINE, [later, FIRST, other, MINE, earlier]) == [earlier, FIRST]
    assert blockers(replace(MINE, pools=None), [FIRST, other]) == [FIRST, other]


def test_nothing_before_it_and_a_dead_daemon_are_told_apart() -> None:
    assert "daemon starts it next" in progress(MINE, [MINE], now=101.0).state
    assert (
        "daemon does not run: start it: `holdfast up`"
        in progress(MINE, [MINE, FIRST], now=101.0, daemon_runs=False).state
    )


def test_a_state_is_the_same_while_only_time_passes() -> None:
    assert progress(MINE, [FIRST], now=112.0) == progress(MINE, [FIRST], now=113.0)
    working = replace(MINE, status="STARTED", started_at=120.0, said="Wrote 4 rows\nand more")
    assert progress(working, [], now=130.0) == progress(working, [], now=131.0)
    assert progress(working, [], now=130.0).now == "for 10 s: Wrote 4 rows"
    assert progress(MINE, [FIRST], now=112.0) != progress(working, [], now=130.0)


def test_without_a_terminal_each_state_is_a_line_and_a_long_one_is_repeated() -> None:
    out, moment = StringIO(), [0.0]
    told = RunProgress(Console(file=out, width=40), lambda: moment[0])
    for text in ("for 1 s", "for 2 s"):
        told(Progress("run a is queued [behind b]", text))
    moment[0] = REPEAT_S
    told(Progress("run a is queued [behind b]", "for 30 s"))
    told(Progress("run a starts"))
    assert out.getvalue().splitlines() == [
        "run a is queued [behind b] for 1 s",
        "run a is queued [behind b] for 30 s",
        "run a starts",
    ]
