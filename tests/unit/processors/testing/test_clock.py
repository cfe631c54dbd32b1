"""Tests the virtual clock of the in-memory cluster."""

from __future__ import annotations

import pytest

from holdfast.processors.testing import InlineProcess, VirtualClock


def test_what_is_due_is_done_in_order_of_time_and_then_of_asking() -> None:
    clock = VirtualClock()
    done: list[tuple[str, float]] = []

    def note(name: str) -> None:
        done.append((name, clock.monotonic()))

    clock.call_at(2.0, lambda: note("second"))
    clock.call_at(1.0, lambda: note("first"))
    clock.call_at(2.0, lambda: note("second, asked for later"))
    clock.call_at(9.0, lambda: note("not yet"))
    clock.advance_to(5.0)
    assert done == [("first", 1.0), ("second", 2.0), ("second, asked for later", 2.0)]
    assert (clock.monotonic(), clock.next_at) == (5.0, 9.0)


def test_what_is_asked_for_on_the_way_is_done_on_the_way() -> None:
    clock = VirtualClock()
    moments: list[float] = []

    def again() -> None:
        moments.append(clock.monotonic())
        clock.call_later(1.0, again)

    clock.call_later(1.0, again)
    clock.advance_to(3.5)
    assert moments == [1.0, 2.0, 3.0]


def test_a_cancelled_timer_does_nothing_and_is_nothing_to_wait_for() -> None:
    clock = VirtualClock()
    done: list[str] = []
    timer = clock.call_later(1.0, lambda: done.append("never"))
    clock.call_later(2.0, lambda: done.append("done"))
    timer.cancel()
    assert clock.next_at == 2.0
    clock.advance_to(2.0)
    assert (done, clock.next_at) == (["done"], None)


def test_time_never_goes_back() -> None:
    clock = VirtualClock()
    clock.advance_to(5.0)
    clock.advance_to(3.0)
    moments: list[float] = []
    clock.call_at(1.0, lambda: moments.append(clock.monotonic()))
    clock.advance_to(5.0)
    assert moments == [5.0]


def test_the_wall_clock_jumps_alone() -> None:
    clock = VirtualClock(start=1000.0)
    clock.advance_to(5.0)
    clock.skew_s = -60.0
    assert (clock.monotonic(), clock.time()) == (5.0, 945.0)


@pytest.mark.parametrize(("seconds", "reached"), [(1.5, 1.5), (0.0, 0.0), (-3.0, 0.0)])
def test_an_inline_process_sleeps_by_moving_the_clock(seconds: float, reached: float) -> None:
    clock = VirtualClock()
    InlineProcess(clock).sleep(seconds)
    assert clock.monotonic() == reached
