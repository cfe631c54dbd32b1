"""The bench runs with small sizes, and every contender gives plain Python's results. Times are not judged here."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.bench import joins, windows
from tests.bench.cases import all_cases, wanted_of, warm_up_of
from tests.bench.engine import SCENARIOS, SMALL
from tests.bench.measured import RunWrong, run_measured
from tests.bench.results import Results
from tests.bench.stream import FIRST_TIMESTAMP_MS, SeededState, bodies, expected, hash_of

pytestmark = pytest.mark.kafka

WITHOUT_SPARK = [name for name in SCENARIOS if not name.startswith("snapshots")]

PROJECT = Path(__file__).resolve().parent.parent.parent


def bench(folder: Path, *options: str, limit_s: float = 540) -> Results:
    """The results of a small run of the bench. Asserts that the bench leaves no files behind."""
    folder.mkdir()
    kept = folder.parent / "raw.jsonl"
    command = [sys.executable, "-m", "tests.bench.engine", "--small", "--results", str(kept), *options]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, env=environment, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            told, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # on SIGTERM the bench also stops its broker
            told, _ = process.communicate(timeout=60)
    print(told)
    assert process.returncode == 0, told
    assert list(folder.iterdir()) == []
    return Results.kept_in(kept)


def hash_in_plain_python(count: int, keys: int, seeded: dict[bytes, list[float]] | None = None) -> str:
    amounts: dict[bytes, list[float]] = {key: list(of) for key, of in (seeded or {}).items()}
    touched = set()
    for _, key, body in bodies(count, keys):
        amounts.setdefault(key, []).append(json.loads(body)["amount"])
        touched.add(key)
    digest = hashlib.sha256()
    for key in sorted(touched):
        of, total = amounts[key], 0.0
        for amount in of:
            total += amount
        digest.update(key + struct.pack("<qdddd", len(of), total, total / len(of), min(of), max(of)))
    return digest.hexdigest()


def test_what_is_expected_of_windows_is_a_plain_count() -> None:
    counted: Counter[tuple[bytes, int]] = Counter()
    for number, (_, key, _) in enumerate(bodies(150_000, 30)):
        counted[key, FIRST_TIMESTAMP_MS + number // 60_000 * 60_000] += 1
    assert windows.expected(150_000, 30, "current") == counted
    closed = {place: many for place, many in counted.items() if place[1] < FIRST_TIMESTAMP_MS + 120_000}
    assert windows.expected(150_000, 30, "final") == closed
    assert windows.hash_of(closed) != windows.hash_of(counted)


def test_what_is_expected_of_rows_is_where_each_row_is_now() -> None:
    now: dict[bytes, str] = {}
    moves = 0
    for _, _, key, body, _ in joins.rows("t", 20_000, 300, "rows"):
        merchant = json.loads(body)["merchant"]
        moves += (key in now and now[key] != merchant) + (now.get(key) != merchant)
        now[key] = merchant
    sent = joins.Sent("rows")
    for key, many in Counter(now.values()).items():
        sent.add(key.encode(), b'{"count":%d}' % many, 0)
    assert joins.expected(20_000, 300, "rows") == (moves, sent.result()[1])
    assert joins.calls_of_streams(20_000, 300, "rows") == 60_000 - 300
    for value in (b"1", b"1", b"2", b"0"):  # Kafka Streams also sends an unchanged count, and 0 for an empty group
        sent.add(b"new", value, 0)
    assert sent.result() == (len(set(now.values())) + 3, joins.expected(20_000, 300, "rows")[1])


def test_a_record_that_is_no_result_of_a_window_fails_the_run() -> None:
    with pytest.raises(RunWrong, match="is no result of a window: .*`start`"):
        windows.Sent().add(b"k", b'{"value":1}', 0)


def test_the_raw_client_warms_the_broker_up_with_what_it_can_compute() -> None:
    cases = {case.name: case for case in all_cases(SMALL)}
    warm_up = {name: warm_up_of([case]) for name, case in cases.items()}
    assert {(case.windows, case.restore) for case in warm_up.values() if "floor" not in case.contenders} == {("", 0)}
    assert warm_up_of([cases["cache"], cases["few-eos-1s"]]) == warm_up["few-eos-1s"] == cases["few-eos-1s"]


def test_messages_are_json_of_119_bytes_in_the_partition_of_their_key() -> None:
    made = list(bodies(3_000, 100))
    assert {len(value) for _, _, value in made} == {119}
    assert all(json.loads(value)["user_id"] == key.decode() for _, key, value in made)
    assert len({(key, partition) for partition, key, _ in made}) == len({key for _, key, _ in made})


def test_what_is_expected_is_the_plain_fold() -> None:
    assert hash_of(expected(3_000, 100).items()) == hash_in_plain_python(3_000, 100)


def test_seeded_state_counts_as_messages_that_came_before() -> None:
    state = SeededState(records=250, keys=100)
    before = {
        b"user-%08d" % user: [least] * times for user, times, _, least, _ in state.items()
    }  # the last record of a user replaces the user's earlier records
    assert {len(of) for of in before.values()} == {2, 3}
    assert hash_of(expected(500, 120, state).items()) == hash_in_plain_python(500, 120, before)


def test_one_lost_or_changed_output_changes_the_hash() -> None:
    final = expected(500, 50)
    wanted = hash_of(final.items())
    key, totals = next(iter(final.items()))
    totals.total += 1e-9
    assert hash_of(final.items()) != wanted
    del final[key]
    assert hash_of(final.items()) != wanted


def test_a_measured_process_is_measured_with_its_threads_and_its_last_line() -> None:
    program = "import threading, json\nthreads = [threading.Thread(target=sum, args=(range(3_000_000),)) for _ in '12']"
    program += "\n[t.start() for t in threads]\n[t.join() for t in threads]\nprint(json.dumps({'made': 2}))"
    usage = run_measured([sys.executable, "-c", program], {}, os.getpid(), 120)
    assert usage.told == {"made": 2}
    assert usage.cpu_s > 0.01
    assert usage.peak_bytes > 1 << 20


def test_a_process_that_fails_fails_the_run_with_its_words() -> None:
    with pytest.raises(RunWrong, match="no such luck"):
        run_measured([sys.executable, "-c", "raise SystemExit('no such luck')"], {}, os.getpid(), 120)


@pytest.mark.thorough
def test_the_engine_computes_what_plain_python_does_in_every_case(
    broker_jars: tuple[Path, ...], tmp_path: Path
) -> None:
    cases = {case.name: case for case in all_cases(SMALL)}
    # A sample of the cases: both guarantees, both numbers of keys, and one case of each kind.
    chosen = [
        "few-eos-1s",
        "many-alo-1s",
        "windows-current",
        "windows-final",
        "join-rows",
        "restore",
        "cache",
        "latency",
    ]
    # The peers are left out, because they need separate environments, which only `make bench` sets up.
    results = bench(tmp_path / "bench", "--cases", ",".join(chosen), "--contenders", "floor,ours,ours-builtin")

    assert not results.wrong
    for name in chosen:
        case, runs = results.runs[name]
        assert case == cases[name]
        assert set(runs) == set(case.contenders) & {"floor", "ours", "ours-builtin"}
        # the raw client computes nothing, so it has no result hash
        assert {run.hash for who, of in runs.items() for run in of if who != "floor"} == {wanted_of(case).hash}, name


@pytest.mark.thorough
def test_the_engine_against_itself_has_the_right_results_in_every_scenario(
    broker_jars: tuple[Path, ...], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    results = bench(
        tmp_path / "bench", "--cases", ",".join(WITHOUT_SPARK), "--contenders", "ours", "--page", str(page)
    )  # each scenario checks its outputs or state itself, and fails the bench if they are wrong

    assert not results.wrong
    assert {name: len(ways) for name, (_, ways) in results.figures.items()} == {
        "checkpoint": 2,
        "pair": 2,
        "start": 1,
        "failover": 1,
        "partitions": 2,
        "audit": 4,
        "windows": 1,
    }
    ways = results.figures["checkpoint"][1]
    assert ways["full replay"][0]["replayed"] >= SCENARIOS["checkpoint"].small
    assert 0 < ways["checkpoint + 10 % tail"][0]["replayed"] < SCENARIOS["checkpoint"].small / 5
    assert results.figures["failover"][1]["with a standby"][0]["replayed"] < SCENARIOS["failover"].small
    assert "measured   checkpoint, pair, start, failover, partitions, audit, windows" in page.read_text()
    told = (tmp_path / "page-engine.md").read_text()
    assert all(f"## {name}" in told for name in WITHOUT_SPARK)
    rows = SCENARIOS["audit"].small
    assert [runs[0]["rows"] for runs in results.figures["audit"][1].values()] == [
        rows,
        rows * 11 // 10 + 4,
        rows,
        3 * rows,
    ]


@pytest.mark.thorough
@pytest.mark.timeout(1_500)
def test_snapshots_have_the_right_results_in_every_way(broker_jars: tuple[Path, ...], tmp_path: Path) -> None:
    # each way compares its result with plain Python, and fails the bench if they differ
    results = bench(tmp_path / "bench", "--cases", "snapshots", "--contenders", "ours", limit_s=1_400)
    assert not results.wrong
    ways = results.figures["snapshots"][1]
    assert {way: len(runs) for way, runs in ways.items()} == dict.fromkeys(ways, 1)
    assert [run["rows"] for way, (run,) in ways.items() if way.startswith("incremental")] == [
        1_000,
        2_000,
        2_000,
        2_000,
        2_000,
    ]
    assert len(ways) == 14
