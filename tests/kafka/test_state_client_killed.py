"""Programs go on reading state while one of two workers is killed, on a real broker."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Application, AsyncStateClient, StateAway, StateClient, StateRefused

KEYS = [f"k{number}" for number in range(10)]
TOKEN = "a-token-for-dashboards"


class Reader:
    """Reads all keys again and again until it is stopped; collects each count, and each answer that was none."""

    def __init__(self, home: Any, group: str) -> None:
        self._home, self._group = home, group
        self._ends = threading.Event()
        self.counts: dict[str, list[int | None]] = {key: [] for key in KEYS}
        self.failures: list[Exception] = []
        self.rounds = 0
        self._threads = [threading.Thread(target=self._run, args=(read,)) for read in (self._blocking, self._awaiting)]

    def __enter__(self) -> Reader:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for each in self._threads:
            each.join()

    def _run(self, read: Callable[[], None]) -> None:
        try:
            read()
        except Exception as failure:
            self.failures.append(failure)

    def _blocking(self) -> None:
        with StateClient(self._group, home=self._home, timeout_s=120) as client:
            while not self._ends.is_set():
                for key in KEYS:
                    self._note(key, lambda key=key: client.key("counts", key, "n"))
                self._all_of_them([(row.key, row.state["n"]) for row in client.keys("counts")])
                self.rounds += 1

    def _awaiting(self) -> None:
        async def read() -> None:
            async with AsyncStateClient(self._group, home=self._home, timeout_s=120) as client:
                while not self._ends.is_set():
                    answers = await asyncio.gather(*(client.get("counts", key, "n") for key in KEYS))
                    self._all_of_them(list(zip(KEYS, answers, strict=True)))

        asyncio.run(read())

    def _note(self, key: str, read: Any) -> None:
        answer = read()
        self.counts[key].append(answer.state.get("n") if answer.found else None)

    def _all_of_them(self, rows: list[tuple[str, Any]]) -> None:
        if sorted(key for key, _ in rows) != KEYS or not all(isinstance(count, int) for _, count in rows):
            self.failures.append(AssertionError(f"the keys and counts are {rows}"))


@pytest.mark.slow
def test_reads_go_on_while_a_worker_is_killed_and_none_is_wrong_or_empty(
    stream: Any, worker: Any, waiting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [worker(slot=slot).start() for slot in ("0", "1")]
    home = workers[0].paths.home
    for each in workers:
        each.wait_running()
    waiting(lambda: all(len(each.client.status().tasks) == 1 for each in workers), "each worker to have a task")
    stream.feed_numbers(200, keys=10)
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    app = Application(stream.bootstrap, consumer_group=stream.group, loglevel=None)

    def fed() -> list[tuple[str, int, int]]:
        ends = stream.topics.end_offsets(stream.source, committed=True)
        return [(stream.source, number, end) for number, end in ends.items()]

    with app.state_client(timeout_s=120) as client:
        assert [client.get("counts", key, "n", after=fed(), wait=30) for key in KEYS] == [20] * 10
        owner = client.key("counts", "k1").position.worker
        with Reader(home, stream.group) as reader:
            before = reader.rounds
            waiting(lambda: reader.failures or reader.rounds > before + 1, "the readers to read")
            workers[int(owner)].kill()
            stream.feed_numbers(200, keys=10)
            assert [client.get("counts", key, "n", after=fed(), wait=30) for key in KEYS] == [40] * 10
            assert {answer.position.worker for answer in client.many("counts", KEYS)} == {str(1 - int(owner))}
            workers[int(owner)].start().wait_running()
            waiting(
                lambda: {answer.position.worker for answer in client.many("counts", KEYS)} == {"0", "1"},
                "the worker that came back to own a task",
            )
            before = reader.rounds
            waiting(lambda: reader.failures or reader.rounds > before + 1, "the readers to read again")
    assert reader.failures == []
    for counts in reader.counts.values():
        assert None not in counts
        assert counts == sorted(counts), "a later read is never older"
        assert (counts[0], counts[-1]) == (20, 40)

    for each in workers:
        each.terminate()
    with app.state_client(timeout_s=0.5) as client, pytest.raises(StateAway, match=f"`holdfast status {stream.group}`"):
        client.get("counts", "k1")


@pytest.mark.thorough
def test_the_token_that_the_error_names_reads_state(stream: Any, worker: Any) -> None:
    made = worker()
    made.environment["HOLDFAST_SERVING__STATE_TOKEN"] = TOKEN
    made.start().wait_running()
    stream.feed_numbers(20, keys=10)
    url = StateClient(stream.group, home=made.paths.home)
    with url:
        url.stores()
        address = url._known.workers.known()[0].url
    with StateClient(urls=[address], token="another") as client, pytest.raises(StateRefused, match="STATE_TOKEN"):
        client.get("counts", "k1")
    with StateClient(urls=[address], token=TOKEN, timeout_s=60) as client:
        ends = stream.topics.end_offsets(stream.source, committed=True)
        after = [(stream.source, number, end) for number, end in ends.items()]
        assert client.get("counts", b"k1", "n", after=after, wait=30) == 2
        assert client.stores()[0]["kind"] == "key-value"

    command = [sys.executable, "-m", "holdfast.orchestration.cli", "query", stream.group, "k1", "--watch", "--json"]
    with subprocess.Popen(command, env=made.environment, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = (json.loads(line) for line in watching.stdout)
        assert [row["value"] for row in next(lines)["rows"]] == [2]
        stream.feed_numbers(20, keys=10)
        assert next(rows for line in lines if (rows := line["rows"])[0]["value"] != 2)[0]["value"] in (3, 4)
        watching.send_signal(signal.SIGINT)
        watching.communicate()
    assert watching.returncode == 0
