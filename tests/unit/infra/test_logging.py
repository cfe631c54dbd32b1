"""Logs go to the current `sys.stderr`, and never contain secrets."""

import io
import json
import subprocess
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


PENDING = """
import sys
from holdfast.infra.log import configure_level, configure_logging, get_logger, is_configured
log = get_logger("test")
print(is_configured(), end=" ")
configure_logging("DEBUG", "text")
configure_logging("WARNING", "json")
log.debug("hidden")
log.info("hidden", n=1)
print(is_configured(), "structlog" in sys.modules, end=" ")
{then}
print(is_configured(), "structlog" in sys.modules, any("holdfast" in type(each).__module__ for each in sys.meta_path))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "then",
    [
        "log.warning('shown', token='t0p')",
        # the project's own code logs with structlog itself, and expects stdout to stay clean
        "import structlog; structlog.get_logger().info('hidden'); structlog.get_logger().warning('shown', token='t0p')",
        "configure_level('ERROR', 'text'); log.warning('hidden'); log.error('shown', token='t0p')",
    ],
)
def test_a_configuration_waits_for_the_first_message_that_is_shown(then):
    """A command that logs nothing imports no structlog, and whoever imports structlog finds it configured."""
    command = [sys.executable, "-c", PENDING.format(then=then)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout == "False True False True True False\n", ran.stderr
    (line,) = ran.stderr.splitlines()
    assert {key: json.loads(line)[key] for key in ("event", "token")} == {"event": "shown", "token": "***"}
