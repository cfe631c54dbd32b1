"""Goals, tables and pages are computed from raw results, which may come from several runs of the bench."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from holdfast.infra.kafka.embedded.broker import BrokerAddress
from holdfast.infra.system.process import start_mark
from tests.bench.cases import Case, Kind, Result, all_cases
from tests.bench.engine import FULL, in_turns
from tests.bench.goals import judged, summary
from tests.bench.measured import RunWrong
from tests.bench.page import page, write_pages
from tests.bench.report import against_ourselves, block
from tests.bench.results import Results
from tests.bench.scenario import what_failed

CASES = {case.name: case for case in all_cases(FULL)}
RUN = Result(1_000, 900.0, 1_000.0, 8.0, 6.0, 1.0, 100 << 20, 0.1, "ab", {})


def add(results: Results, case: str, contender: str, **changes: object) -> None:
    results.add_run(CASES[case], contender, contender.title(), replace(RUN, **changes))


def verdicts(results: Results, cores: int = 8) -> dict[str, tuple[str, str]]:
    return {goal.what: (goal.found, goal.verdict) for goal in judged(results, cores)}


def test_a_goal_compares_the_medians_of_what_was_measured() -> None:
    results = Results()
    for rate in (12_000.0, 90_000.0, 13_000.0):
        add(results, "few-eos-1s", "ours", warm_rate=rate)
    for rate in (1_000.0, 1.0, 1_100.0):
        add(results, "few-eos-1s", "quix", warm_rate=rate)
    add(results, "few-eos-1s", "streams", warm_rate=6_501.0, warm_cpu=13.0)
    told = verdicts(results)
    assert told["function, 10 k keys, 1 s, rate / Quix Streams"] == ("13.00x", "met")
    assert told["function, 10 k keys, 1 s, rate / Kafka Streams"] == ("2.00x", "not met")
    assert told["function, CPU s/M / Kafka Streams"] == ("0.46x", "met")
    assert told["restore, rate / Quix Streams"] == ("-", "not measured")


def test_latency_and_memory_have_to_be_below_their_goals() -> None:
    results = Results()
    add(results, "latency", "ours", latency_ms={"p50": 1.0, "p99": 66.0})
    add(results, "latency", "quix", latency_ms={"p50": 1.0, "p99": 60.0})
    add(results, "latency", "streams", latency_ms={"p50": 1.0, "p99": 100.0})
    add(results, "many-eos-1s", "ours", peak_bytes=500)
    add(results, "many-eos-1s", "quix", peak_bytes=1_000)
    told = verdicts(results)
    assert told["latency p99 / Quix Streams"] == ("1.10x", "met")
    assert told["latency p99 / Kafka Streams"] == ("0.66x", "not met")
    assert told["peak RSS at 1 M keys / Quix Streams"] == ("0.50x", "met")


def test_joins_are_judged_by_cpu_and_groups_by_that_of_the_whole_process() -> None:
    results = Results()
    add(results, "join-asof", "ours", warm_cpu=10.0)
    add(results, "join-asof", "quix", warm_cpu=40.0)
    add(results, "join-table", "ours", warm_cpu=12.1)
    add(results, "join-table", "streams", warm_cpu=10.0)
    for contender, cpu in (("ours", 11.0), ("ours-builtin", 9.5), ("quix", 100.0), ("streams", 10.0)):
        add(results, "join-group", contender, cpu=cpu, warm_cpu=1.0)
    told = verdicts(results)
    assert told["as-of join, function, CPU s/M / Quix Streams"] == ("0.25x", "met")
    assert told["stream and table, function, CPU s/M / Kafka Streams"] == ("1.21x", "not met")
    assert told["group and count, function, CPU s/M / Quix Streams"] == ("0.11x", "met")
    assert told["group and count, function, CPU s/M / Kafka Streams"] == ("1.10x", "met")
    assert told["group and count, built-in, CPU s/M / Kafka Streams"] == ("0.95x", "not met")
    assert not any(what.startswith(("as-of join", "stream and table")) and "built-in" in what for what in told)


def test_exactly_once_is_compared_with_at_least_once() -> None:
    results = Results()
    add(results, "few-eos-1s", "ours", warm_rate=96.0)
    add(results, "few-alo-1s", "ours", warm_rate=100.0)
    add(results, "few-eos-100ms", "ours", warm_rate=84.0)
    add(results, "few-alo-100ms", "ours", warm_rate=100.0)
    told = verdicts(results)
    assert told["function, exactly-once / at-least-once, commit every 1s"] == ("0.96x", "met")
    assert told["function, exactly-once / at-least-once, commit every 100ms"] == ("0.84x", "not met")
    assert "ours, few keys, commit every 1s: 0.96" in against_ourselves(results.runs)


def test_the_scenarios_have_goals_and_two_processes_are_judged_where_cores_allow() -> None:
    results = Results()
    for way, seconds in (("checkpoint + 10 % tail", 1.0), ("full replay", 8.5)):
        results.add_figures("checkpoint", "title", way, {"restore s": seconds})
    for way, rate in (("one process", 100.0), ("two processes", 150.0)):
        results.add_figures("pair", "title", way, {"rate /s": rate, "CPU s/M": 9.0})
    results.add_figures("start", "title", "warm disk", {"first output s": 2.5, "replayed": 0})
    results.add_figures("failover", "title", "with a standby", {"takes over s": 2.5})
    results.add_figures("audit", "title", "table", {"rows/CPU-s": 900_000.0})
    told = verdicts(results)
    assert told["audit of a table, rows per CPU-second"] == ("900.00 k", "met")
    assert told["audit of a store, rows per CPU-second"][1] == "not measured"
    assert told["restore from checkpoint + 10 % tail / full replay"] == ("8.50x", "met")
    assert told["two processes / one, rate"] == ("1.50x", "not met")
    assert verdicts(results, cores=2)["two processes / one, rate"][1].startswith("not judged: 2 cores")
    assert told["start with 1 M keys on the disk, to the first output"] == ("2.50 s", "met")
    assert told["failover to a standby, after the group notices"] == ("2.50 s", "not met")


def test_a_bench_in_parts_is_one_bench(tmp_path: Path) -> None:
    kept = tmp_path / "raw.jsonl"
    first = Results.kept_in(kept)
    add(first, "few-eos-1s", "ours")
    first.add_conditions("load 1")
    second = Results.kept_in(kept)
    add(second, "few-eos-1s", "quix", count=200)
    add(second, "latency", "ours", latency_ms={"p50": 1.0, "p99": 2.0})
    second.add_figures("failover", "title", "with a standby", {"takes over s": 0.5})
    second.add_conditions("load 2")
    second.add_wrong("restore quix, run 1: it took too long")

    found = Results.kept_in(kept)
    assert found == second
    case, runs = found.runs["few-eos-1s"]
    assert case == CASES["few-eos-1s"]
    assert set(runs) == {"ours", "quix"}
    told = page(found, 2, "engine.md")
    assert told.startswith("# Benchmarks")
    assert "load 1" in told
    assert "load 2" in told
    assert "it took too long" in told
    assert "### latency" in told
    assert summary(found, 2).count("\n") == len(judged(found, 2)) - 1

    write_pages(tmp_path / "page.md", found, 2)
    assert "[another page](page-engine.md)" in (tmp_path / "page.md").read_text()
    beside = (tmp_path / "page-engine.md").read_text()
    assert "## failover" in beside
    assert "(page.md#conditions)" in beside


def test_conditions_that_hold_for_all_parts_are_told_once() -> None:
    results = Results()
    results.add_conditions("measured   one\nmachine    9 cores\nload       1.0")
    results.add_conditions("measured   two\nmachine    9 cores\nload       2.0")
    told = page(results, 9, "engine.md")
    assert told.count("machine    9 cores") == 1
    assert "measured   one\nload       1.0\n\nmeasured   two\nload       2.0" in told


def test_a_table_says_who_had_less_to_do() -> None:
    results = Results()
    add(results, "few-eos-1s", "ours", count=1_000_000)
    add(results, "few-eos-1s", "quix", count=150_000, hash="cd")
    told = block(*_case(results, "few-eos-1s"))
    assert "1,000,000 messages, quix 150,000; 1 runs of each" in told
    assert "result sha256 cd in all 1 runs over 150,000; result sha256 ab in all 1 runs over 1,000,000" in told


def test_a_part_of_the_work_has_its_own_counts() -> None:
    restore = CASES["restore"].of("quix")
    assert (restore.restore, restore.keys) == (1_000_000, 500_000)
    assert CASES["few-eos-1s"].of("quix").count == 150_000
    assert CASES["few-eos-1s"].of("streams") is CASES["few-eos-1s"]
    assert CASES["latency"].kind is Kind.LATENCY


def test_what_differs_in_its_guarantee_only_is_measured_side_by_side() -> None:
    names = [[case.name for case in cases] for cases in in_turns(CASES.values())]
    assert names == [
        ["few-eos-1s", "few-alo-1s"],
        ["few-eos-100ms", "few-alo-100ms"],
        ["many-eos-1s", "many-alo-1s"],
        ["windows-current"],
        ["windows-final"],
        ["join-table"],
        ["join-interval"],
        ["join-asof"],
        ["join-group"],
        ["join-rows"],
        ["restore"],
        ["cache"],
        ["latency"],
    ]


def _case(results: Results, name: str) -> tuple[Case, dict[str, str], dict[str, list[Result]]]:
    case, runs = results.runs[name]
    return case, results.titles, runs


def test_a_broker_that_was_ended_is_told_before_all_that_was_seen_after_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    broker = BrokerAddress("127.0.0.1:1", process.pid, start_mark(process.pid) or "")
    assert what_failed(RunWrong("no answer"), broker) == "no answer"
    process.communicate(b"\n", timeout=60)
    assert what_failed(RunWrong("no answer"), broker).startswith(f"the broker's process {process.pid} was ended by")
