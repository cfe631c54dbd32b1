"""SIGTERM and SIGINT stop a running worker gently."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable


def stop_on_signals(stop: Callable[[], None]) -> Callable[[], None]:
    """Calls ``stop`` on SIGTERM and SIGINT; returns a function that restores the former handlers.

    Outside of the main thread Python allows no handlers: nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in former:
        signal.signal(number, lambda *_: stop())

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    return restore
