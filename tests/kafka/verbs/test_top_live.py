"""``holdfast top`` on a running processor, as plain text and as JSON, and after the processor has died."""

import json
import os
import signal

import pytest

from holdfast.orchestration.cli import main
from tests.parts.operated import PARTITIONS, Operated


@pytest.mark.thorough
def test_a_processor_is_shown_as_it_works_and_as_it_is_dead(operated: Operated, capsys) -> None:
    operated.bring_up()
    operated.feed(keys=10, each=10)
    operated.processed(100)
    capsys.readouterr()

    assert main(["top", "--json", "--times", "2", "--every", "0.5", operated.group]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    (row,) = second["processors"]
    assert (row["state"], row["tasks"], row["tasks_running"]) == ("healthy", PARTITIONS, PARTITIONS)
    assert first["processors"][0]["records_per_s"] is not None
    assert main(["top", "nobody"]) == 0
    assert capsys.readouterr().out == "No deployed processor to show.\n"

    status = operated.client.status()
    assert status is not None
    os.kill(status.pid, signal.SIGKILL)
    operated.wait_for(lambda: operated.client.status() is None, "its end")
    assert main(["top"]) == 0
    text = capsys.readouterr().out
    assert f"{operated.group}" in text
    assert "dead" in text
    assert "\x1b" not in text
