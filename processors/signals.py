"""SIGTERM and SIGINT as a wish to finish, for as long as a worker runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable


def stop_on_signals(stop: Callable[[], None]) -> Callable[[], None]:
    """Let SIGTERM and SIGINT ask for the end; returns what puts the former handlers back."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in former:
        signal.signal(number, lambda *_: stop())

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    return restore
