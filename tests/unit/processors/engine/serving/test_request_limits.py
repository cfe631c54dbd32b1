"""Limits of the HTTP server: a bounded number of threads, and an allowance that refills over time."""

from __future__ import annotations

import threading

from holdfast.processors.engine.serving.limits import Allowance, WorkThreads


def test_a_crew_has_no_more_threads_than_work_or_its_bound() -> None:
    crew, gate, done = WorkThreads("a crew of a test", 2), threading.Event(), threading.Semaphore(0)

    def work() -> None:
        assert gate.wait(60)
        done.release()

    for _ in range(5):
        crew.take(work)
    assert sum(thread.name == "a crew of a test" for thread in threading.enumerate()) == 2
    gate.set()
    for _ in range(5):
        assert done.acquire(timeout=60)
    crew.end()


def test_a_free_thread_takes_the_next_work() -> None:
    crew, done = WorkThreads("a small crew", 8), threading.Semaphore(0)
    crew.take(done.release)
    assert done.acquire(timeout=60)
    crew.end()
    assert sum(thread.name == "a small crew" for thread in threading.enumerate()) <= 1


def test_an_allowance_is_used_up_and_fills_with_time() -> None:
    allowance = Allowance(10.0, 3)
    assert [allowance.takes_one(5.0) for _ in range(4)] == [True, True, True, False]
    assert [allowance.takes_one(5.125), allowance.takes_one(5.125)] == [True, False]
    assert [allowance.takes_one(60.0) for _ in range(4)] == [True, True, True, False]
