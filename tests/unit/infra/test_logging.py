"""Logs go to the current `sys.stderr`, and never contain secrets."""

import io
import sys

import pytest
import structlog

from holdfast.infra.log import configure_logging


@pytest.fixture(autouse=True)
def as_before():
    yield
    structlog.reset_defaults()


def test_a_stderr_that_was_exchanged_and_closed_since_is_no_harm(monkeypatch):
    log, first, second = structlog.get_logger("test"), io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    configure_logging("INFO", "text")
    log.info("one")
    assert "one" in first.getvalue()
    first.close()
    monkeypatch.setattr(sys, "stderr", second)
    log.info("two", token="t0p")
    assert "two" in second.getvalue()
    assert "t0p" not in second.getvalue()
