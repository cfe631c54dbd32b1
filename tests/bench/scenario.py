"""Scenarios compare ways to use the engine. The ways take turns, and each run yields a few figures."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.embedded.broker import BrokerAddress
from holdfast.infra.system.process import is_running
from tests.bench.measured import RunWrong
from tests.bench.results import Figures, Results
from tests.parts.brokers import started_broker

BROKER_HEAP_MB = 1_024


@dataclass(frozen=True, slots=True)
class Place:
    """The resources of a scenario: the broker, a folder, the size and the number of rounds."""

    broker: BrokerAddress
    #: A separate folder, empty at the start.
    folder: Path
    #: The number of changelog records, keys or messages, depending on the scenario.
    size: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. ``measure`` yields the way and figures of each finished run, and raises RunWrong."""

    name: str
    #: The title of the scenario, as a format string with ``{size:,}``.
    title: str
    size: int
    small: int
    measure: Callable[[Place], Iterable[tuple[str, Figures]]]

    def run(self, place: Place, results: Results) -> None:
        """Measure, and add each run to ``results`` when it is done.

        Raises:
            RunWrong: A run did not do what it should measure, or its result is wrong.
        """
        place.folder.mkdir(parents=True, exist_ok=True)
        for way, figures in self.measure(place):
            results.add_figures(self.name, self.title.format(size=place.size), way, figures)
            told = ", ".join(f"{column} {shown(value)}" for column, value in figures.items())
            print(f"run        {self.name} {way}: {told}", flush=True)


def what_failed(wrong: Exception, broker: BrokerAddress) -> str:
    """Return the error of a run that does not count.

    If the broker is dead, the text names that first, because it explains the other errors.
    """
    if is_running(broker.pid, broker.mark):
        return str(wrong)
    return f"the broker's process {broker.pid} was ended by somebody, or by the machine; what was seen then: {wrong}"


def shown(value: float) -> str:
    """Format a figure for a table."""
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1_000 else f"{value:,.2f}"


def rows_of(ways: Mapping[str, Sequence[Figures]]) -> tuple[list[str], list[list[str]]]:
    """The column names, and the medians of each way's runs."""
    columns = list(next(iter(ways.values()))[0])
    rows = [
        [way, str(len(runs)), *(shown(median(run[column] for run in runs)) for column in columns)]
        for way, runs in ways.items()
    ]
    return ["", "runs", *columns], rows


def block(name: str, title: str, ways: Mapping[str, Sequence[Figures]]) -> str:
    """The lines of one scenario: medians, and all runs of the first column."""
    columns, rows = rows_of(ways)
    lines = [f"{name}: {title}; medians"]
    for row in (columns, *rows):
        lines.append(
            f"  {row[0]:<26}"
            + "".join(f"{cell:>{max(8, len(columns[number + 1]) + 3)}}" for number, cell in enumerate(row[1:]))
        )
    return "\n".join(lines)


def run_alone(scenario: Scenario, arguments: list[str]) -> int:
    """The command line of one scenario, on a separate broker. Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.bench.{scenario.name}")
    parser.add_argument("--size", type=int, default=scenario.size, help=scenario.title.format(size=scenario.size))
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way")
    parser.add_argument("--results", type=Path, default=None, help="a file for raw results, as JSON lines")
    given = parser.parse_args(arguments)
    # Exit normally on SIGTERM, so that the broker is stopped as well. Otherwise the broker would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = Results.kept_in(given.results)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        started_broker(Path(folder) / "broker", heap_mb=BROKER_HEAP_MB, options=()) as broker,
    ):
        place = Place(broker.address, Path(folder) / "scenario", given.size, given.rounds)
        try:
            scenario.run(place, results)
        except (RunWrong, HoldfastError) as wrong:
            print(f"WRONG      {what_failed(wrong, broker.address)}", file=sys.stderr)
            return 1
    print(block(scenario.name, *results.figures[scenario.name]))
    print(f"load       {load()} after the bench")
    return 0


def load() -> str:
    """The machine's load average over 1, 5 and 15 minutes."""
    return " ".join(f"{part:.1f}" for part in os.getloadavg())
