"""Compares the engine with the raw client, Quix Streams and Kafka Streams, on one real broker: ``make bench``.

    python -m tests.bench.engine                                     everything; over half an hour on two cores
    python -m tests.bench.engine --small                             smallest sizes, once: tests results, not speed
    python -m tests.bench.engine --cases few-eos-1s,failover --messages 200000 --contenders ours,streams
    python -m tests.bench.engine --cases restore --results raw.jsonl --page docs/benchmarks.md

Contenders take turns, each time in a new process. Rates come from the broker's append times of the outputs. ``warm``
is the last 60 % of the outputs, when a JVM has compiled its hot code. CPU seconds and peak memory are those of the
process with all its threads. ``broker`` is the broker's CPU, and ``others`` the number of cores that the rest of the
machine used meanwhile. CPU is in seconds per million messages. The outputs of each run are read back. There must be
one for each message, and the final totals must have the same bits as in plain Python. A failed run does not count. The
report names it, leaves its contender out of the case, and the exit code is 1.

With ``--results``, every run is stored as a line in a file. Tables, goals and the page use all runs in the file. So the
bench can run in parts. After an interruption, run it again with the names of the remaining cases.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

from confluent_kafka import libversion

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.embedded.broker import BrokerAddress
from holdfast.infra.settings import load_settings
from holdfast.infra.setup.jars import JarSource, fetch_jars
from holdfast.infra.setup.java import Java, find_java
from tests.bench import audit, checkpoint, failover, open_windows, pair, partitions, queries, scenario, snapshots, start
from tests.bench.cases import Case, Kind, Runner, Sizes, all_cases, warm_up_of
from tests.bench.goals import summary
from tests.bench.measured import RunWrong
from tests.bench.page import write_pages
from tests.bench.peers import CONTENDERS, JAVA_HEAP_MB, Contender, Machine, NotHere, versions
from tests.bench.report import against_ourselves, block
from tests.bench.results import Results
from tests.bench.scenario import BROKER_HEAP_MB, Place, Scenario, load, what_failed
from tests.bench.stream import MESSAGE_BYTES, PARTITIONS
from tests.parts.brokers import started_broker

SCENARIOS = {
    each.name: each
    for each in (
        checkpoint.SCENARIO,
        pair.SCENARIO,
        start.SCENARIO,
        failover.SCENARIO,
        queries.SCENARIO,
        partitions.SCENARIO,
        audit.SCENARIO,
        snapshots.SCENARIO,
        snapshots.LARGE,
        open_windows.SCENARIO,
    )
}
FULL = Sizes(messages=1_000_000, restore=2_000_000, cache_keys=1_000_000, latency_s=8, latency_rate=5_000)
SMALL = Sizes(2_000, 4_000, 2_000, 1, 500, few_keys=100, many_keys=1_000, window_messages=260_000)


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cases", default="", help="names, with commas; all by default")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="names, with commas; all by default")
    parser.add_argument("--rounds", type=int, default=None, help="runs of each; 3 by default")
    parser.add_argument("--messages", type=int, default=None, help="messages of a throughput case")
    parser.add_argument("--window-messages", type=int, default=None, help="messages of a case of windows")
    parser.add_argument("--restore", type=int, default=None, help="changelog records of the restore case")
    parser.add_argument("--cache-keys", type=int, default=None, help="keys of the case that outgrows the block cache")
    parser.add_argument("--latency-s", type=int, default=None, help="seconds that count in the latency case")
    parser.add_argument("--results", type=Path, default=None, help="a file for raw results, as JSON lines; kept")
    parser.add_argument("--page", type=Path, default=None, help="a Markdown page to write, with one beside it")
    parser.add_argument("--small", action="store_true", help="the smallest sizes, one round")
    given = parser.parse_args(arguments)
    given.rounds = given.rounds or (1 if given.small else 3)
    given.contenders = [name for name in given.contenders.split(",") if name]
    unknown = [name for name in given.contenders if name not in CONTENDERS]
    if unknown:
        parser.error(f"there is no contender {', '.join(unknown)}; there are {', '.join(CONTENDERS)}")
    sizes = SMALL if given.small else FULL
    given.all = all_cases(
        Sizes(
            given.messages or sizes.messages,
            given.restore or sizes.restore,
            given.cache_keys or sizes.cache_keys,
            given.latency_s or sizes.latency_s,
            sizes.latency_rate,
            sizes.few_keys,
            sizes.many_keys,
            given.window_messages or sizes.window_messages,
        )
    )
    there = [*(case.name for case in given.all), *SCENARIOS]
    names = [name for name in given.cases.split(",") if name] or there
    unknown = [name for name in names if name not in there]
    if unknown:
        parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(there)}")
    given.chosen = [case for case in given.all if case.name in names]
    given.scenarios = [each for name, each in SCENARIOS.items() if name in names]
    return given


def conditions(given: argparse.Namespace, java: Java, jars: Iterable[Path]) -> str:
    """The machine and the versions on which the bench runs."""
    kafka = next((jar.stem.rpartition("-")[2] for jar in jars if jar.name.startswith("kafka-server-")), "?")
    nice = os.nice(0)
    names = ", ".join(each.name for each in (*given.chosen, *given.scenarios))
    return "\n".join(
        (
            f"measured   {names}",
            f"machine    {os.cpu_count()} cores, {platform.system()} {platform.machine()}; the broker runs on it too",
            f"load       {load()} before the bench (1, 5, 15 minutes){f'; run at nice {nice}' if nice else ''}",
            f"python     {platform.python_implementation()} {platform.python_version()}",
            f"versions   Kafka {kafka} (Java {java.version}), librdkafka {libversion()[0]}, {versions()}",
            f"broker     one node, replication 1, heap {BROKER_HEAP_MB} MiB; heap of Kafka Streams {JAVA_HEAP_MB} MiB",
            f"messages   JSON of {MESSAGE_BYTES} bytes, {PARTITIONS} partitions, lz4; one output for each",
            f"runs       {given.rounds} of each, in turns, one process each",
        )
    )


def contenders_of(given: argparse.Namespace, machine: Machine) -> dict[str, Contender]:
    """Return the contenders that can run on this machine. Prints the reason for each contender that cannot."""
    found = {}
    for name in given.contenders:
        try:
            found[name] = CONTENDERS[name](machine)
        except NotHere as reason:
            print(f"not here   {name}: {reason}", flush=True)
    return found


def in_turns(cases: Iterable[Case]) -> list[list[Case]]:
    """Group the cases. Cases that differ only in their guarantee take turns, because a goal limits their ratio."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.name.replace("-alo-", "-eos-"), []).append(case)
    return list(groups.values())


def measure_cases(
    cases: Sequence[Case], runner: Runner, found: dict[str, Contender], rounds: int, results: Results
) -> bool:
    """Run a few cases in turns and add each run to ``results``. Returns whether all runs count."""
    failed: set[tuple[str, str]] = set()
    for number, (name, contender), case in product(range(1, rounds + 1), found.items(), cases):
        if name not in case.contenders or (case.name, name) in failed:
            continue
        began = time.monotonic()
        try:
            result = runner.run(case, contender, number)
        except (RunWrong, HoldfastError) as wrong:
            failed.add((case.name, name))
            _wrong(results, f"{case.name} {name}, run {number}: {what_failed(wrong, runner.broker)}")
            continue
        results.add_run(case, name, contender.title, result)
        shown = f"{result.rate:,.0f} /s" if case.kind is not Kind.LATENCY else f"p99 {result.latency_ms['p99']:.1f} ms"
        took = f"{time.monotonic() - began:.0f} s with all around it"
        print(f"run {number}      {case.name} {name}: {shown}, {result.cpu:.2f} CPU s/M ({took})", flush=True)
    return not failed


def measure_scenario(each: Scenario, place: Place, results: Results) -> bool:
    """Run a scenario. Returns whether all its runs count."""
    try:
        each.run(place, results)
    except (RunWrong, HoldfastError) as wrong:
        _wrong(results, f"{each.name}: {what_failed(wrong, place.broker)}")
        return False
    return True


def _wrong(results: Results, told: str) -> None:
    print(f"WRONG      {told}", file=sys.stderr, flush=True)
    results.add_wrong(told)


def measure_all(
    given: argparse.Namespace, broker: BrokerAddress, home: Path, found: dict[str, Contender], results: Results
) -> bool:
    """Run all chosen cases and scenarios. Returns whether all runs count."""
    runner, right = Runner(broker, home / "state"), True
    if "floor" in found and given.chosen and not given.small:
        runner.run(warm_up_of(given.chosen), found["floor"], 0)
    for cases in in_turns(given.chosen):
        right = measure_cases(cases, runner, found, given.rounds, results) and right
    for each in given.scenarios if "ours" in found else ():
        size = each.small if given.small else each.size
        right = measure_scenario(each, Place(broker, home / each.name, size, given.rounds), results) and right
    return right


def measure(given: argparse.Namespace) -> int:
    """Start a broker, run everything, and print the report. Returns the exit code."""
    settings, java = load_settings(), find_java()
    source = JarSource(java, settings.ivy_settings)
    jars = fetch_jars("broker", settings.cache, source)
    found = contenders_of(given, Machine(settings.cache, java, source))
    results, told = Results.kept_in(given.results), conditions(given, java, jars)
    print(told, flush=True)
    right = False
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        try:
            with started_broker(Path(folder) / "broker", heap_mb=BROKER_HEAP_MB, java=java, options=()) as broker:
                right = measure_all(given, broker.address, Path(folder), found, results)
        finally:
            results.add_conditions(f"{told}\nload       {load()} after the bench")
            # The bench may have been interrupted. A table of its partial results is still useful.
            report(given, results)
    return 0 if right else 1


def report(given: argparse.Namespace, results: Results) -> None:
    """Print tables, ratios and goals of all results."""
    print()
    for case, runs in results.runs.values():
        print(block(case, results.titles, runs), end="\n\n")
    for name, (title, ways) in results.figures.items():
        print(scenario.block(name, title, ways), end="\n\n")
    print(against_ourselves(results.runs), end="\n\n")
    print(summary(results, os.cpu_count() or 1))
    print(f"load       {load()} after the bench", flush=True)
    if given.page is not None:
        write_pages(given.page, results, os.cpu_count() or 1)


def main(arguments: list[str]) -> int:
    """Run the command line. Returns the exit code."""
    given = options(arguments)
    if given.rounds < 1 or min(case.count for case in given.all) < 1:
        raise SystemExit("--rounds and --messages are at least 1")
    # Exit normally on SIGTERM, so that the broker is stopped as well. Otherwise the broker would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return measure(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
