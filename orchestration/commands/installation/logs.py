"""``holdfast logs``: prints the log of a worker."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.orchestration.commands.options import Processor, command_settings

_FOLLOW_EVERY_S = 0.3
#: Number of lines that are printed if neither ``--lines`` nor ``--since`` is given.
USUAL_LINES = 50
_AGO = re.compile(r"(\d+)\s*(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
#: Matches the time in a log line: at the start of a text line, or in the field ``timestamp`` of a JSON line.
_TIME = re.compile(r'(?:^|"timestamp": ?")(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)')


class NoLog(HoldfastError):
    """The processor has no log file for the given slot."""

    exit_code = EXIT_BAD_CONFIGURATION


class NoTime(HoldfastError):
    """The value of ``--since`` is neither a duration nor a time. Field: seen."""

    exit_code = EXIT_BAD_CONFIGURATION


def logs(
    processor: Processor,
    slot: Annotated[str, typer.Option(help="Slot of the instance.")] = "0",
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Number of lines. Default: 50; with `--since`: all.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until interrupted.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only lines since: `90s`, `10m`, `2h`, `1d`, or a time in ISO 8601 (UTC).", show_default=False
        ),
    ] = None,
) -> None:
    """Print the last lines of a processor's log."""
    begin = None if since is None else since_time(since, datetime.now(UTC))
    paths = command_settings().paths
    file = paths.program_log(processor, slot)
    if not file.is_file():
        logs = sorted(path.stem for path in paths.logs.glob("*.log"))
        raise NoLog(
            f"Processor {processor} has no log for slot {slot} in {paths.logs}. Logs there: "
            f"{', '.join(logs) or 'none'}.",
            action="Find the deployed processors with `holdfast status`, then give `--slot` if it is not 0.",
            processor=processor,
            slot=slot,
        )
    count = USUAL_LINES if lines is None and begin is None else lines
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal end of `--follow`.
        for line in log_lines(file, count, begin, follow=follow, pause=lambda: time.sleep(_FOLLOW_EVERY_S)):
            typer.echo(line, nl=False)


def since_time(text: str, now: datetime) -> datetime:
    """The time that the value of ``--since`` means, for example ten minutes before ``now`` for ``10m``.

    Raises:
        NoTime: The text is neither a duration nor a time.
    """
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    moment = _moment(text.strip())
    if moment is None:
        raise NoTime(
            f"`--since` is {text!r}, expected a duration or a time.",
            action="Give `90s`, `10m`, `2h`, `1d`, or a time as `2026-11-24T13:00:00`.",
            seen=text,
        )
    return moment


def log_lines(
    file: Path, count: int | None, begin: datetime | None, *, follow: bool, pause: Callable[[], None]
) -> Iterator[str]:
    """Yields the last ``count`` lines (None: all) since ``begin``; with ``follow``, then also new lines, without end.

    If the log file has too few lines, rotated files (``.1``, ``.2``, ...) are read too. If the log is rotated
    during ``follow``, reading continues in the new file. ``pause`` is called each time there is no new line.
    """
    opened = file.open(encoding="utf-8", errors="replace")
    try:
        newest = deque(_since(opened, begin), maxlen=count)
        yield from _older(file, None if count is None else count - len(newest), begin)
        yield from newest
        while follow:
            if line := opened.readline():
                yield line
                continue
            pause()
            with suppress(OSError):  # During a rotation, the file does not exist for a moment.
                there = file.stat()
                if there.st_ino != os.fstat(opened.fileno()).st_ino or there.st_size < opened.tell():
                    rest = opened.read()
                    opened.close()
                    opened = file.open(encoding="utf-8", errors="replace")
                    if rest:
                        yield rest
    finally:
        opened.close()


def _older(file: Path, count: int | None, begin: datetime | None) -> list[str]:
    """The last ``count`` lines (None: all) since ``begin`` in the rotated log files ``FILE.1``, ``FILE.2``, …"""
    found: list[str] = []
    for number in itertools.count(1):
        if count is not None and len(found) >= count:
            break
        try:
            with Path(f"{file}.{number}").open(encoding="utf-8", errors="replace") as opened:
                part = deque(_since(opened, begin), maxlen=None if count is None else count - len(found))
        except OSError:
            break
        if not part and begin is not None:
            break  # All lines of this file are older than `begin`, so the lines of the older files are, too.
        found = [*part, *found]
    return found


def _since(lines: Iterable[str], begin: datetime | None) -> Iterator[str]:
    """The lines from the time ``begin`` on.

    A line without a time, for example in a traceback, counts as written at the time of the previous line.
    """
    wanted = begin is None
    for line in lines:
        if begin is not None and (found := _TIME.search(line)) is not None:
            moment = _moment(found[1])
            wanted = wanted if moment is None else moment >= begin
        if wanted:
            yield line


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
