"""The goals of the bench. Each goal is judged by the medians of all runs in the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from tests.bench import audit, checkpoint, failover, pair, partitions, snapshots, start
from tests.bench.cases import Result
from tests.bench.results import Results

#: The number of cores below which two processes and the broker compete for them. A ratio of their rates then means
#: nothing.
CORES_FOR_PAIR = 4

Of = Callable[[Result], float]


@dataclass(frozen=True, slots=True)
class Judged:
    """One goal of the bench with its measured figure.

    ``measured`` is None if a needed run is missing. ``beside`` is an additional remark for the report.
    """

    what: str
    at_least: bool
    goal: float
    measured: float | None
    unit: str = "x"
    beside: str = ""
    #: The reason why the goal can't be judged here; empty if it can.
    unjudged: str = ""

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.goal:.4g}{self.unit}"

    @property
    def found(self) -> str:
        return "-" if self.measured is None else f"{self.measured:.2f}{self.unit}"

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured"
        if self.unjudged:
            return self.unjudged
        met = self.measured >= self.goal if self.at_least else self.measured <= self.goal
        return "met" if met else "not met"

    def line(self) -> str:
        beside = f" ({self.beside})" if self.beside else ""
        return f"goal       {self.what}: {self.wanted}   measured {self.found}{beside}   {self.verdict}"


def judged(results: Results, cores: int) -> list[Judged]:
    """Judge all goals. The result has the order of the goals in the report's table."""
    return [
        *_against_peers(results),
        *_of_joins(results),
        *_against_ourselves(results),
        *_of_scenarios(results, cores),
        *_of_snapshots(results),
    ]


def summary(results: Results, cores: int) -> str:
    """The verdict on each goal, one line per goal."""
    return "\n".join(goal.line() for goal in judged(results, cores))


def _against_peers(results: Results) -> Iterator[Judged]:
    rates = (
        ("function, 10 k keys, 1 s", "few-eos-1s", "ours", (12.0, 2.0)),
        ("function, 10 k keys, 100 ms", "few-eos-100ms", "ours", (8.0, 1.7)),
        ("built-in, 10 k keys, 1 s", "few-eos-1s", "ours-builtin", (18.0, 3.5)),
        ("function, 1 M keys", "many-eos-1s", "ours", (6.0, 3.0)),
        ("built-in, 1 M keys", "many-eos-1s", "ours-builtin", (9.0, 4.5)),
        ("restore", "restore", "ours", (8.0, 1.8)),
    )
    for what, case, name, goals in rates:
        for peer, title, goal in zip(PEERS, TITLES, goals, strict=True):
            cpu = _ratio(results, case, name, peer, _cpu)
            beside = "" if cpu is None else f"CPU {cpu:.3f}x"
            yield Judged(f"{what}, rate / {title}", True, goal, _ratio(results, case, name, peer, _warm), beside=beside)
    below: tuple[tuple[str, str, str, Of, tuple[float, float]], ...] = (
        ("function, CPU s/M", "few-eos-1s", "ours", _cpu, (1 / 8, 0.5)),
        ("built-in, CPU s/M", "few-eos-1s", "ours-builtin", _cpu, (1 / 12, 0.35)),
        *(
            (f"{what}, windows, {emit}, CPU s/M", f"windows-{emit}", name, _cpu, goals)
            for emit in ("current", "final")
            for what, name, goals in (("reduce", "ours", (1 / 3, 1.2)), ("built-in", "ours-builtin", (1 / 5, 0.8)))
        ),
        ("latency p99", "latency", "ours", _p99, (1.1, 0.6)),
        ("peak RSS at 1 M keys", "many-eos-1s", "ours", _peak, (0.6, 0.6)),
    )
    for what, case, name, of, goals in below:
        for peer, title, goal in zip(PEERS, TITLES, goals, strict=True):
            yield Judged(f"{what} / {title}", False, goal, _ratio(results, case, name, peer, of))


def _of_joins(results: Results) -> Iterator[Judged]:
    """The CPU of joins and groups, compared with the peers that have them."""
    function, builtin = (1 / 4, 1.2), (1 / 4, 0.9)
    below: tuple[tuple[str, str, str, Of, tuple[float | None, float | None]], ...] = (
        ("stream and table, function", "join-table", "ours", _cpu, (None, function[1])),
        ("as-of join, function", "join-asof", "ours", _cpu, (function[0], None)),
        # The engine reads groups ahead, so most of their work may be done before the warm part. Therefore use the CPU
        # of the whole process.
        ("group and count, function", "join-group", "ours", _whole_cpu, function),
        ("group and count, built-in", "join-group", "ours-builtin", _whole_cpu, builtin),
        ("rows of a table by group", "join-rows", "ours-builtin", _whole_cpu, (None, function[1])),
    )
    for what, case, name, of, goals in below:
        for peer, title, goal in zip(PEERS, TITLES, goals, strict=True):
            if goal is not None:
                yield Judged(f"{what}, CPU s/M / {title}", False, goal, _ratio(results, case, name, peer, of))


def _against_ourselves(results: Results) -> Iterator[Judged]:
    for name, what in (("ours", "function"), ("ours-builtin", "built-in")):
        for every, goal in (("1s", 0.95), ("100ms", 0.85)):
            exactly, at_least = (_middle(results, f"few-{short}-{every}", name, _warm) for short in ("eos", "alo"))
            ratio = exactly / at_least if exactly and at_least else None
            yield Judged(f"{what}, exactly-once / at-least-once, commit every {every}", True, goal, ratio)


def _of_scenarios(results: Results, cores: int) -> Iterator[Judged]:
    short, full = (
        _figure(results, "checkpoint", way, "restore s") for way in (checkpoint.FROM_CHECKPOINT, checkpoint.FULL_REPLAY)
    )
    ratio = full / short if full and short else None
    yield Judged("restore from checkpoint + 10 % tail / full replay", True, 8.0, ratio)
    one, two = (_figure(results, "pair", way, "rate /s") for way in pair.WAYS.values())
    cpu = [_figure(results, "pair", way, "CPU s/M") for way in pair.WAYS.values()]
    beside = f"CPU s/M {cpu[0]:.2f} and {cpu[1]:.2f}" if cpu[0] and cpu[1] else ""
    scarce = "" if cores >= CORES_FOR_PAIR else f"not judged: {cores} cores, the broker's work included"
    ratio = two / one if one and two else None
    yield Judged("two processes / one, rate", True, 1.7, ratio, beside=beside, unjudged=scarce)
    replayed = _figure(results, "start", start.WAY, "replayed")
    beside = "" if replayed is None else f"{replayed:,.0f} records replayed"
    first = _figure(results, "start", start.WAY, "first output s")
    yield Judged("start with 1 M keys on the disk, to the first output", False, 3.0, first, " s", beside)
    takes_over = _figure(results, "failover", failover.WITH, "takes over s")
    yield Judged("failover to a standby, after the group notices", False, 2.0, takes_over, " s")
    few, many = (_figure(results, "partitions", way, "CPU s/M") for way in partitions.WAYS.values())
    ratio = many / few if few and many else None
    yield Judged("a message with 1,000 partitions / with 10, CPU", False, 1.5, ratio)
    opened = _figure(results, "partitions", partitions.WAYS[1_000], "opened s")
    yield Judged("1,000 tasks with warm state, until the last runs", False, 10.0, opened, " s")
    for way, goal in ((audit.STORE_WAY, 400.0), (audit.CHANGELOG_WAY, 200.0), (audit.TABLE_WAY, 800.0)):
        rate = _figure(results, "audit", way, "rows/CPU-s")
        thousands = None if rate is None else rate / 1_000
        yield Judged(f"audit of a {way}, rows per CPU-second", True, goal, thousands, " k")


def _of_snapshots(results: Results) -> Iterator[Judged]:
    def figure(way: str, column: str) -> float | None:
        return _figure(results, "snapshots", way, column)

    for reader, named in ((snapshots.READER, "state reader"), (snapshots.READER_OF_LOG, "reader of changelogs")):
        theirs = figure(reader, "rows/CPU-s")
        for way, goal in ((snapshots.CHECKPOINT, 2.5), (snapshots.CHANGELOG, 1.5)):
            ours = figure(way, "rows/CPU-s")
            ratio = ours / theirs if ours and theirs else None
            yield Judged(f"{way} / Spark's {named}, rows per CPU-second", True, goal, ratio)
    full = figure(snapshots.FULL, "CPU s")
    for way, goal in ((snapshots.incremental(snapshots.SOME), 1 / 4), (snapshots.HISTORY, 1 / 8)):
        used = figure(way, "CPU s")
        yield Judged(f"{way} / full snapshot, CPU", False, goal, used / full if used and full else None)
    for changed in snapshots.FEW:
        small = figure(snapshots.incremental(changed), "CPU s")
        large = _figure(results, snapshots.LARGE.name, snapshots.incremental(changed), "CPU s")
        ratio = large / small if small and large else None
        told = f"{snapshots.incremental(changed)}: 4 M keys / 1 M keys, CPU (of the table's size: 4)"
        yield Judged(told, False, 2.0, ratio)
    rate = figure(snapshots.TABLE_BY_SPARK, "rows/CPU-s")
    thousands = None if rate is None else rate / 1_000
    yield Judged(f"{snapshots.TABLE_BY_SPARK}, rows per CPU-second", True, 800.0, thousands, " k")
    yield Judged("cold snapshot, from the start of the JVM", False, 60.0, figure(snapshots.COLD, "s"), " s")
    yield Judged(snapshots.WARM, False, 6.0, figure(snapshots.WARM, "s"), " s")
    peak = figure(snapshots.COLD, "JVM MiB")
    yield Judged("driver's memory, cold snapshot", False, 1_536.0, peak, " MiB")
    peak = figure(snapshots.incremental(snapshots.FEW[-1]), "JVM MiB")
    yield Judged("driver's memory, all of the bench", False, 1_536.0, peak, " MiB")


PEERS, TITLES = ("quix", "streams"), ("Quix Streams", "Kafka Streams")


def _ratio(results: Results, case: str, name: str, peer: str, of: Of) -> float | None:
    ours, theirs = _middle(results, case, name, of), _middle(results, case, peer, of)
    return ours / theirs if ours and theirs else None


def _middle(results: Results, case: str, name: str, of: Of) -> float | None:
    runs = results.runs[case][1].get(name) if case in results.runs else None
    return median(of(run) for run in runs) if runs else None


def _figure(results: Results, scenario: str, way: str, column: str) -> float | None:
    runs = results.figures[scenario][1].get(way) if scenario in results.figures else None
    return median(run[column] for run in runs) if runs else None


def _warm(run: Result) -> float:
    return run.warm_rate


def _cpu(run: Result) -> float:
    """CPU as in the table: of the warm part if there is one, otherwise of the whole process."""
    return run.cpu if run.warm_cpu is None else run.warm_cpu


def _whole_cpu(run: Result) -> float:
    return run.cpu


def _p99(run: Result) -> float:
    return run.latency_ms["p99"]


def _peak(run: Result) -> float:
    return float(run.peak_bytes)
