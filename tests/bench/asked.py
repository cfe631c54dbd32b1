"""Asks the program ``quix_local.py`` for one measurement after the other, so that both sides can take turns."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.infra.settings import load_settings
from tests.bench.measured import RunWrong
from tests.bench.peers import HERE, PROJECT, NotHere, quix_python

Asked = subprocess.Popen[str]


@contextmanager
def quix_local(python: Path) -> Iterator[Asked]:
    """Start the program in the environment of Quix Streams, and end it after the block."""
    command = [str(python), str(HERE / "quix_local.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT, env={"PYTHONPATH": str(PROJECT)}
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()


@contextmanager
def quix_if_here(wanted: bool) -> Iterator[Asked | None]:
    """As :func:`quix_local`; None if it is not wanted, or cannot be installed here. The reason is printed."""
    try:
        python = quix_python(load_settings().cache) if wanted else None
    except NotHere as reason:
        print(f"Quix Streams is not here: {reason}")
        python = None
    if python is None:
        yield None
        return
    with quix_local(python) as process:
        yield process


def ask(process: Asked, **question: Any) -> dict[str, Any]:
    """The answer of the program to one question.

    Raises:
        RunWrong: The program ended. Its error is above, in the same terminal.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # the missing answer is the error
    line = process.stdout.readline()
    if not line:
        raise RunWrong(f"quix_local.py ended with {process.wait()} when it was asked {question}")
    answer: dict[str, Any] = json.loads(line)
    return answer
