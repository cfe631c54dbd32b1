"""The name of a holder identifies its process.

Only processes of the same boot and container can see that it has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.infra.system import process
from holdfast.infra.system.holders import is_gone, new_holder
from holdfast.infra.system.process import own_identity

NEW = "from holdfast.infra.system.holders import new_holder; print(new_holder())"


def test_two_holders_of_one_process_differ_and_neither_is_gone() -> None:
    one, other = new_holder(), new_holder()
    assert one != other
    assert len(one) <= 255
    assert not is_gone(one)
    assert f"/{os.getpid()}/" in one


def test_a_process_that_ended_is_gone_only_for_those_that_could_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name = subprocess.run([sys.executable, "-c", NEW], capture_output=True, text=True, check=True).stdout.strip()
    ours = own_identity()
    assert f"/{ours.boot}/{ours.namespace}/" in name
    assert is_gone(name)
    # Another container, with the same host name and the same process id.
    monkeypatch.setattr(process, "_namespace", lambda: "4026532999")
    assert not is_gone(name)


@pytest.mark.parametrize("name", ["", "host/12/34", "host/no number/34/m/r", "somebody"])
def test_a_name_of_another_form_is_never_gone(name: str) -> None:
    assert not is_gone(name)
