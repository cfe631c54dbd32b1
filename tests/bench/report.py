"""The result tables: one block for each case, one line for each contender, ratios of medians."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import median

from tests.bench.cases import Case, Kind, Result

MIB = 1 << 20
OURS = ("ours", "ours-builtin")

Runs = Mapping[str, Sequence[Result]]


def rows_of(case: Case, titles: Mapping[str, str], runs: Runs) -> list[list[str]]:
    """The header, then one row per contender. A ratio is our figure divided by the contender's figure."""
    bases = [name for name in OURS if runs.get(name)]
    latency = case.kind is Kind.LATENCY
    columns = ["p50 ms", "p99 ms", "p99 best"] if latency else ["best /s", "median /s", "warm /s"]
    columns += ["CPU s/M", "warm", "broker", "RSS MiB", "others"]
    for base in bases:
        mark = "f" if base == "ours" else "b"
        columns += [f"{mark}: {what}" for what in ("p99" if latency else "rate", "CPU", "RSS")]
    rows = [["", *columns]]
    for name, of in runs.items():
        if not of:
            continue
        cells = _latency_cells(of) if latency else _rate_cells(of)
        warm = _warm_cpu(of)
        cells += [f"{_middle(of, _cpu):.2f}", "-" if warm is None else f"{warm:.2f}"]
        cells += [f"{_middle(of, lambda run: run.broker_cpu):.2f}", f"{_middle(of, _peak) / MIB:.0f}"]
        cells.append(f"{_middle(of, lambda run: run.others_cores):.2f}")
        for base in bases:
            cells += _ratios(runs[base], of, latency)
        rows.append([titles[name], *cells])
    return rows


def hashes_of(runs: Runs) -> str:
    """The result hashes of all runs by the amount of work.

    Each hash was already compared with plain Python's result.
    """
    found: dict[tuple[int, str], int] = {}
    for run in chain.from_iterable(runs.values()):
        if run.hash:
            found[run.count, run.hash] = found.get((run.count, run.hash), 0) + 1
    return "; ".join(
        f"result sha256 {digest} in all {many} runs over {count:,}" for (count, digest), many in sorted(found.items())
    )


def counts_of(case: Case, runs: Runs) -> str:
    """Return the case's message count, the counts of contenders that got fewer messages, and the number of runs."""
    counts = {name: case.of(name) for name, of in runs.items() if of}
    less = [
        f"{name} {of.restore or of.count:,}"
        for name, of in counts.items()
        if (of.restore, of.count) != (case.restore, case.count)
    ]
    rounds = sorted({len(of) for of in runs.values() if of})
    many = " to ".join(str(each) for each in ([rounds[0], rounds[-1]] if len(rounds) > 1 else rounds))
    what = "changelog records" if case.kind is Kind.RESTORE else "messages"
    size = case.restore if case.kind is Kind.RESTORE else case.count
    return f"{size:,} {what}{', ' + ', '.join(less) if less else ''}; {many} runs of each"


def block(case: Case, titles: Mapping[str, str], runs: Runs) -> str:
    """The text block of one case: its title, and a row per contender."""
    lines = [f"{case.name}: {case.title}; {counts_of(case, runs)}"]
    for title, *cells in rows_of(case, titles, runs):
        lines.append(f"  {title:<22}" + "".join(f"{cell:>11}" for cell in cells))
    if told := hashes_of(runs):
        lines.append(f"  {told}; the same in plain Python")
    return "\n".join(lines)


def against_ourselves(measured: Mapping[str, tuple[Case, Runs]]) -> str:
    """The cost of exactly-once: the rate with exactly-once, divided by the rate with at-least-once."""
    lines = []
    for keys in ("few", "many"):
        for every in ("1s", "100ms"):
            pair = [measured.get(f"{keys}-{guarantee}-{every}") for guarantee in ("eos", "alo")]
            for name in OURS:
                runs = [found[1].get(name) for found in pair if found is not None]
                if len(runs) == 2 and all(runs):
                    exactly, at_least = (_middle(of or (), _warm_rate) for of in runs)
                    lines.append(f"  {name}, {keys} keys, commit every {every}: {exactly / at_least:.2f}")
    return "\n".join(["exactly-once / at-least-once, rates", *lines]) if lines else ""


def _rate_cells(runs: Sequence[Result]) -> list[str]:
    best = max(run.rate for run in runs)
    return [f"{best:,.0f}", f"{_middle(runs, lambda run: run.rate):,.0f}", f"{_middle(runs, _warm_rate):,.0f}"]


def _latency_cells(runs: Sequence[Result]) -> list[str]:
    p99 = [run.latency_ms["p99"] for run in runs]
    return [f"{_middle(runs, lambda run: run.latency_ms['p50']):.1f}", f"{median(p99):.1f}", f"{min(p99):.1f}"]


def _ratios(base: Sequence[Result], runs: Sequence[Result], latency: bool) -> list[str]:
    first = (
        _middle(base, _p99) / _middle(runs, _p99) if latency else _middle(base, _warm_rate) / _middle(runs, _warm_rate)
    )
    ours_warm, warm = _warm_cpu(base), _warm_cpu(runs)
    cpu = ours_warm / warm if ours_warm and warm else _middle(base, _cpu) / _middle(runs, _cpu)
    return [f"{first:.2f}x", f"{cpu:.2f}x", f"{_middle(base, _peak) / max(1.0, _middle(runs, _peak)):.2f}x"]


def _middle(runs: Sequence[Result], of: Callable[[Result], float]) -> float:
    return median(of(run) for run in runs)


def _warm_cpu(runs: Sequence[Result]) -> float | None:
    known = [run.warm_cpu for run in runs if run.warm_cpu is not None]
    return median(known) if known else None


def _warm_rate(run: Result) -> float:
    return run.warm_rate


def _p99(run: Result) -> float:
    return run.latency_ms["p99"]


def _cpu(run: Result) -> float:
    return run.cpu


def _peak(run: Result) -> float:
    return float(run.peak_bytes)
