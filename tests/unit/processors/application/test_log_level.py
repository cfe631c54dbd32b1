"""``Application(loglevel=...)`` on the in-memory cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from holdfast import Application, InMemoryCluster


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def run(loglevel: str | None) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    app = Application("in-memory", auto_offset_reset="earliest", loglevel=loglevel)
    app.dataframe(app.topic("in")).update(print)
    cluster.produce("in", b'"a message"', b"k")
    cluster.run(app)


def test_lines_below_the_level_are_not_logged_and_others_are_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    run("ERROR")
    assert capfd.readouterr() == ("a message\n", "")
    run("INFO")
    told = capfd.readouterr()
    assert told.out == "a message\n"
    assert "info" in told.err


def test_a_process_that_configured_its_logging_keeps_all_but_the_level(capfd: pytest.CaptureFixture[str]) -> None:
    with structlog.testing.capture_logs() as logs:
        run("ERROR")
        assert logs == []
        run("INFO")
        assert {each["log_level"] for each in logs} == {"info"}
        run(None)
    assert capfd.readouterr() == ("a message\n" * 3, "")
