"""Shows the progress of a foreground worker in one line: phase, rate, lag, commits. On a terminal, the line is updated.

    orders  running  12,345 messages/s  lag 0  57 commits  1,234,567 messages

Without a terminal, the same figures are logged when the phase changes, and every ``PLAIN_EVERY_S`` seconds while
messages arrive.

Invariants:
    - The figures come from the worker's main thread, as for ``/status``. Another thread writes the line, so the line is
      updated even if the main thread is blocked.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.engine.runtime.phases import Phase
from holdfast.processors.engine.runtime.requests import Request
from holdfast.processors.engine.serving.status import describe_worker

_log = structlog.get_logger("worker")

#: Seconds between two updates of the line on a terminal, and between two log lines without a terminal.
LINE_EVERY_S, PLAIN_EVERY_S = 0.5, 10.0
#: Seconds. If the worker's main loop does not answer within this time, the line says that the worker is silent.
SILENT_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The progress figures of a worker at one moment.

    ``lag`` is None if unknown. ``at_s`` is the moment, in seconds of the monotonic clock.
    """

    phase: str
    processed: int
    lag: int | None
    commits: int
    at_s: float

    @staticmethod
    def of(status: Mapping[str, Any], at_s: float) -> Figures:
        """Returns the figures that a ``/status`` document contains."""
        count = status["commits"]["count"]
        return Figures(status["phase"], status["records"]["processed"], status["lag"], count, at_s)

    def rate_since(self, former: Figures | None) -> float | None:
        """Returns the messages per second since ``former``; None if ``former`` is None."""
        if former is None or self.at_s <= former.at_s:
            return None
        return max(0, self.processed - former.processed) / (self.at_s - former.at_s)


def line_of(processor: str, now: Figures, former: Figures | None) -> str:
    """Formats the figures ``now`` as one line of text. The rate is computed from the difference to ``former``."""
    rate = now.rate_since(former)
    parts = [
        processor,
        now.phase,
        "-" if rate is None else f"{rate:,.0f} messages/s",
        f"lag {'unknown' if now.lag is None else f'{now.lag:,}'}",
        f"{now.commits:,} commits",
        f"{now.processed:,} messages",
    ]
    return "  ".join(parts)


@contextmanager
def live_line(worker: Worker, processor: str, slot: str) -> Iterator[None]:
    """Shows the worker's progress line while the ``with`` block runs, and prints the totals after it."""
    ended = threading.Event()
    line = _Line(worker, processor, slot)
    thread = threading.Thread(target=line.run, args=(ended,), name="live-line", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        line.last()


class _Line:
    def __init__(self, worker: Worker, processor: str, slot: str) -> None:
        self._worker, self._processor, self._slot = worker, processor, slot
        self._on_terminal = sys.stderr.isatty()
        self._shown: Figures | None = None
        self._asked: Future[dict[str, Any]] | None = None

    def run(self, ended: threading.Event) -> None:
        """Updates the line until the worker has ended."""
        with ExitStack() as opened:
            terminal = opened.enter_context(_terminal()) if self._on_terminal else None
            while not ended.wait(LINE_EVERY_S):
                now = self._figures()
                if terminal is None:
                    self._tell_plainly(now)
                else:
                    terminal(self._silence() if now is None else line_of(self._processor, now, self._shown))
                    self._shown = now or self._shown

    def last(self) -> None:
        """Prints the totals of the run. Call it after the worker's main loop has ended."""
        commits, messages = self._worker.committer.count, self._worker.processed
        if self._on_terminal:
            sys.stderr.write(f"{self._processor}  ended: {commits:,} commits  {messages:,} messages\n")
        else:
            _log.info("ended", processor=self._processor, commits=commits, messages=messages)

    def _silence(self) -> str:
        ending = self._worker.phase is Phase.STOPPING
        return f"{self._processor}  {'stopping' if ending else 'silent: a function or Kafka takes long'}"

    def _tell_plainly(self, now: Figures | None) -> None:
        former = self._shown
        if now is None:
            return
        moved = former is None or now.phase != former.phase
        if former is not None and now.processed != former.processed:
            moved = moved or now.at_s - former.at_s >= PLAIN_EVERY_S
        if not moved:
            return
        rate = now.rate_since(former)
        _log.info(
            now.phase,
            processor=self._processor,
            messages_per_s=None if rate is None else round(rate),
            lag=now.lag,
            commits=now.commits,
            messages=now.processed,
        )
        self._shown = now

    def _figures(self) -> Figures | None:
        """Returns the current figures; None if the main loop does not answer within ``SILENT_AFTER_S`` seconds."""
        if self._asked is None:
            asked: Future[dict[str, Any]] = Future()

            def answer() -> None:
                try:
                    asked.set_result(describe_worker(self._worker, self._processor, self._slot, None))
                except Exception as failure:  # not raised here, because the main loop raises it
                    asked.set_exception(failure)

            self._asked = asked
            self._worker.requests.append(Request(answer, only_reads=True))
        waiting = self._asked
        wait([waiting], SILENT_AFTER_S)
        if not waiting.done():
            return None
        self._asked = None
        return None if waiting.exception() else Figures.of(waiting.result(), time.monotonic())


@contextmanager
def _terminal() -> Iterator[Callable[[str], None]]:
    """Shows a line at the bottom of the terminal. Other output appears above the line."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    to_terminal = sys.stdout.isatty()  # rich must not redirect output to a file or a pipe
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=to_terminal) as opened:
        yield lambda line: opened.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
