"""Tests the simulation with toy processes: virtual time, turns, kills, and that one seed gives one trace."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.processors.testing.clock import VirtualClock
from tests.simulation.scheduler import SimulatedProcess, Simulation, SimulationStuck, Step


def never() -> bool:
    return False


def test_time_moves_only_when_all_sleep_and_no_further_than_the_first_to_wake() -> None:
    clock = VirtualClock()
    simulation = Simulation(clock, Random(1))
    woken: list[tuple[str, float]] = []

    def sleeper(seconds: float) -> None:
        def live(process: SimulatedProcess) -> None:
            process.sleep(seconds)
            woken.append((process.name, clock.monotonic()))

        simulation.start(f"sleeps {seconds}", live)

    for seconds in (3.0, 1.0, 2.0):
        sleeper(seconds)
    simulation.run_until(lambda: len(woken) == 3, 10.0)
    assert woken == [("sleeps 1.0", 1.0), ("sleeps 2.0", 2.0), ("sleeps 3.0", 3.0)]


def test_processes_take_turns_at_points_and_run_alone_between_them() -> None:
    simulation = Simulation(VirtualClock(), Random(3))
    inside: list[str] = []
    turns: list[str] = []

    def live(process: SimulatedProcess) -> None:
        for _ in range(20):
            inside.append(process.name)
            assert inside == [process.name]
            inside.remove(process.name)
            turns.append(process.name)
            process.point("turn")

    for name in ("a", "b"):
        simulation.start(name, live)
    simulation.run_until(lambda: True, 1.0)
    assert sorted(turns) == ["a"] * 20 + ["b"] * 20
    assert turns != sorted(turns)


def test_a_dead_process_has_no_effect_even_from_its_finally_blocks() -> None:
    effects: list[str] = []
    simulation = Simulation(
        VirtualClock(), Random(1), lambda process, name: Step.CRASH if name == "second" else Step.GO_ON
    )

    def live(process: SimulatedProcess) -> None:
        try:
            process.point("first")
            effects.append("first")
            process.point("second")
            effects.append("second")
        finally:
            for what in ("leave", "abort"):
                process.point(what)
                effects.append(what)

    process = simulation.start("a", live)
    simulation.run_until(lambda: True, 1.0)
    assert effects == ["first"]
    assert process.ended
    assert process.frozen
    assert process.failure is None


def test_a_killed_sleeper_is_taken_off_and_its_finally_blocks_run() -> None:
    clock = VirtualClock()
    simulation = Simulation(clock, Random(1))
    ended: list[float] = []

    def live(process: SimulatedProcess) -> None:
        try:
            process.sleep(100.0)
        finally:
            ended.append(clock.monotonic())

    process = simulation.start("a", live)
    clock.call_later(5.0, process.kill)
    simulation.run_until(lambda: process.ended, 50.0)
    assert ended == [5.0]


def test_a_process_that_is_killed_before_it_begins_never_runs() -> None:
    simulation = Simulation(VirtualClock(), Random(1))
    ran: list[str] = []
    process = simulation.start("a", lambda process: ran.append(process.name))
    process.kill()
    simulation.run_until(lambda: process.ended, 1.0)
    assert ran == []


def test_a_frozen_process_does_nothing_until_it_is_thawed() -> None:
    clock = VirtualClock()
    simulation = Simulation(clock, Random(1))
    woken: list[float] = []

    def live(process: SimulatedProcess) -> None:
        process.sleep(1.0)
        woken.append(clock.monotonic())

    process = simulation.start("a", live)
    process.freeze()
    assert process.frozen
    clock.call_later(30.0, process.thaw)
    simulation.run_until(lambda: process.ended, 50.0)
    assert woken == [31.0]


def test_what_ends_a_process_is_kept() -> None:
    simulation = Simulation(VirtualClock(), Random(1))

    def live(process: SimulatedProcess) -> None:
        process.point("here")
        raise ValueError("no")

    process = simulation.start("a", live)
    simulation.run_until(lambda: process.ended, 1.0)
    assert isinstance(process.failure, ValueError)


def test_waiting_for_what_never_comes_ends_with_where_everybody_is() -> None:
    simulation = Simulation(VirtualClock(), Random(1))

    def live(process: SimulatedProcess) -> None:
        while True:
            process.point("asks again")
            process.sleep(1.0)

    simulation.start("a", live)
    with pytest.raises(SimulationStuck, match="within 60 virtual seconds") as stuck:
        simulation.run_until(never, 60.0)
    assert stuck.value.fields["processes"] == {"a": "asks again"}
    simulation.end()


def test_spinning_without_sleeping_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.scheduler.POINTS_PER_INSTANT_MAX", 100)
    simulation = Simulation(VirtualClock(), Random(1))

    def live(process: SimulatedProcess) -> None:
        while True:
            process.point("spins")

    simulation.start("a", live)
    with pytest.raises(SimulationStuck, match="time stood still"):
        simulation.run_until(never, 60.0)
    simulation.end()


def _run(seed: int) -> tuple[list[str], str]:
    random = Random(seed)
    clock = VirtualClock()

    def decide(process: SimulatedProcess, name: str) -> Step:
        return Step.CRASH if random.random() < 0.01 else random.choice([Step.YIELD, Step.GO_ON])

    simulation = Simulation(clock, random, decide)

    def live(process: SimulatedProcess) -> None:
        for number in range(30):
            process.point(f"work {number}")
            if random.random() < 0.2:
                process.sleep(random.random())

    for name in ("a", "b", "c"):
        simulation.start(name, live)
    simulation.run_until(lambda: not simulation.processes, 100.0)
    return simulation.trace_lines(), simulation.trace_hash


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    traces = {_run(seed)[1] for seed in range(20)}
    assert len(traces) == 20
    assert _run(7) == _run(7)
