"""`holdfast logs`: the last lines, the lines since a time, and new lines while the log is rotated."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest

from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.installation.logs import NoTime, log_lines, since_time

NOW = datetime(2026, 11, 24, 13, 0, tzinfo=UTC)
LINES = [
    "2026-11-24T11:00:00.000000Z [info     ] early\n",
    "2026-11-24T12:30:00.000000Z [error    ] failed\n",
    "Traceback (most recent call last):\n",
    '{"event": "as JSON", "timestamp": "2026-11-24T12:59:00Z"}\n',
]


def never() -> None:
    raise AssertionError("nothing is waited for")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "orders-0.log"
    file.write_text("".join(LINES))
    return file


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", datetime(2026, 11, 24, 12, 58, 30, tzinfo=UTC)),
        ("10m", datetime(2026, 11, 24, 12, 50, tzinfo=UTC)),
        ("2h", datetime(2026, 11, 24, 11, 0, tzinfo=UTC)),
        ("1d", datetime(2026, 11, 23, 13, 0, tzinfo=UTC)),
        ("2026-11-24T12:00:00", datetime(2026, 11, 24, 12, 0, tzinfo=UTC)),
        ("2026-11-24T13:00:00+01:00", datetime(2026, 11, 24, 12, 0, tzinfo=UTC)),
    ],
)
def test_since_is_a_duration_or_a_time(text: str, moment: datetime) -> None:
    assert since_time(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "soon", "10", "m", "10w"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(NoTime, match="expected a duration or a time"):
        since_time(text, NOW)


def test_lines_are_counted_from_the_end_and_begin_at_a_moment(log: Path) -> None:
    assert list(log_lines(log, 2, None, follow=False, pause=never)) == LINES[2:]
    assert list(log_lines(log, 0, None, follow=False, pause=never)) == []
    assert list(log_lines(log, None, since_time("1h", NOW), follow=False, pause=never)) == LINES[1:]
    assert list(log_lines(log, 1, since_time("1h", NOW), follow=False, pause=never)) == LINES[3:]
    assert list(log_lines(log, None, NOW, follow=False, pause=never)) == []


def test_lines_of_rotated_files_come_first(log: Path) -> None:
    older = ["2026-11-24T10:00:00Z first\n", "2026-11-24T10:30:00Z second\n"]
    Path(f"{log}.1").write_text(older[1])
    Path(f"{log}.2").write_text(older[0])
    assert list(log_lines(log, 5, None, follow=False, pause=never)) == [older[1], *LINES]
    assert list(log_lines(log, 50, None, follow=False, pause=never)) == [*older, *LINES]
    assert list(log_lines(log, None, since_time("2026-11-24T10:15", NOW), follow=False, pause=never)) == [
        older[1],
        *LINES,
    ]
    assert list(log_lines(log, None, since_time("1h", NOW), follow=False, pause=never)) == LINES[1:]


def test_new_lines_follow_also_those_of_a_file_that_took_its_place(log: Path) -> None:
    steps = iter(["append", "rotate", "truncate"])

    def pause() -> None:
        step = next(steps)
        if step == "append":
            log.write_text("".join([*LINES, "more\n"]))
        elif step == "rotate":
            log.rename(log.with_suffix(".log.1"))
            log.write_text("after the rotation\n")
        else:
            log.write_text("cut\n")

    followed = log_lines(log, 1, None, follow=True, pause=pause)
    assert list(islice(followed, 4)) == [LINES[3], "more\n", "after the rotation\n", "cut\n"]
    followed.close()  # type: ignore[attr-defined]  # a generator


def test_the_command_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    assert main(["logs", "orders"]) == 64
    assert "Logs there: none" in capfd.readouterr().err
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "orders-0.log").write_text("".join(LINES))
    assert main(["logs", "orders", "-n", "1"]) == 0
    assert capfd.readouterr().out == LINES[3]
    assert main(["logs", "orders", "--since", "2026-11-24T12:00"]) == 0
    assert capfd.readouterr().out == "".join(LINES[1:])
