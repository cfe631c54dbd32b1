"""Processes that work for the demo beside it: the feed, and the run that writes the last tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.infra.process import end_process, start_mark
from holdfast.infra.settings import Settings

#: How long a process may take to end when the block ends first, seconds.
END_WITHIN_S = 10.0


@contextmanager
def child(settings: Settings, words: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python with these words in the demo's home folder; what it prints goes to ``log``.

    The process is ended when the block ends first.
    """
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=settings.home,
            env={**os.environ, "HOLDFAST_HOME": str(settings.home)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    mark = start_mark(process.pid) or ""
    try:
        yield process
    finally:
        end_process(process.pid, mark, timeout_s=END_WITHIN_S)
