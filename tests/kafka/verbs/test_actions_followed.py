"""A refusal names another command; after this command has run exactly as named, the refused command succeeds."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from holdfast.orchestration.cli import main
from tests.parts.operated import Operated


class Shell:
    """Runs `holdfast` commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def passes(self, command: str) -> None:
        """Run a command that must succeed."""
        code = main(shlex.split(command))
        printed = self._capsys.readouterr()
        assert code == 0, f"{command}: {printed.out}{printed.err}"

    def refused(self, command: str) -> list[str]:
        """Run a command that must fail. Returns the commands that the error's action names."""
        assert main([*shlex.split(command), "--json"]) != 0, command
        error = json.loads(self._capsys.readouterr().out)["error"]
        named = re.findall(r"`holdfast ([a-z][^`]*)`", error["action"])
        assert named, error
        return named


def test_what_a_refusal_names_lets_the_command_pass(operated: Operated, capsys: pytest.CaptureFixture[str]) -> None:
    shell, group = Shell(capsys), operated.group
    operated.feed(keys=3, each=4)

    (provision,) = shell.refused(f"apply restore {group}")
    assert provision == f"apply provision {group}"
    shell.passes(provision)
    shell.passes(f"apply deploy {group}")
    operated.processed(12)

    clear = f"apply clear {group} --all --rewind earliest --yes"
    (stop,) = shell.refused(clear)
    shell.passes(stop)
    shell.passes(clear)

    # all three commands need a running worker, so their refusals name the same command
    needy = [f"audit {group}", f"apply compact {group}", f"rehearse {group} --partition 0"]
    deploy = f"apply deploy {group}"
    assert [shell.refused(each)[-1] for each in needy] == [deploy] * 3
    shell.passes(deploy)
    operated.processed(12)
    for each in needy:
        shell.passes(each)

    backfill = f"apply backfill {group} --store counts --from local --yes"
    (stop,) = shell.refused(backfill)
    shell.passes(stop)
    shell.passes(backfill)


def test_what_is_asked_for_by_a_wrong_number_is_listed(operated: Operated, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(capsys)
    for command in ("apply resume 99", "incidents show 99", f"rehearse {operated.group}"):
        shell.passes(shell.refused(command)[0])
