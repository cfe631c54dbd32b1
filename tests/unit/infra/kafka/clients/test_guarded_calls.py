"""A guarded call (a call with a time limit, on its own thread) is abandoned if it does not return in time.

Other guarded calls behave like direct calls.
"""

import threading

import pytest

from holdfast.infra.kafka.clients.guarded_calls import CallHangs, GuardedCalls


def test_a_call_is_made_and_its_failure_is_raised():
    calls, made = GuardedCalls("test"), []
    calls.run(lambda: made.append(threading.current_thread().name), limit_s=60, on_wait=lambda: None)
    assert made == ["test"]
    with pytest.raises(ZeroDivisionError):
        calls.run(lambda: made.append(1 / 0), limit_s=60, on_wait=lambda: None)
    calls.close()


def test_a_call_that_hangs_is_given_up_while_the_caller_shows_life():
    calls, told, let_go = GuardedCalls("test"), [], threading.Event()
    with pytest.raises(CallHangs):
        calls.run(lambda: (let_go.wait(600), None)[1], limit_s=0.5, on_wait=lambda: told.append(1))
    assert told
    with pytest.raises(CallHangs):
        calls.run(lambda: None, limit_s=60, on_wait=lambda: None)
    let_go.set()
    calls.close()
