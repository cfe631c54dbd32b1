"""Every code block of the pages is run or parsed, or has ``<!-- not run: REASON -->`` on the line before it.

Python runs on the in-memory cluster: blocks with tests as tests, declared applications with a message for each input,
other blocks as they are.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast import Application, InMemoryCluster, Partition
from tests.docs.pages import PAGES, PROJECT, CodeBlock, code_blocks

#: The known languages. Text blocks are output or drawings; ``test_console.py`` checks console and shell blocks.
LANGUAGES = {"python", "console", "sh", "json", "yaml", "toml", "sql", "java", "text", ""}
PYTHON = list(code_blocks("python"))
RUN = [block for block in PYTHON if not block.reason]
TESTS = [block for block in RUN if re.search(r"^def test_", block.text, re.M)]
PLAIN = [block for block in RUN if block not in TESTS]


def cases(blocks: list[CodeBlock]) -> list[Any]:
    return [pytest.param(block, id=block.name) for block in blocks]


def test_there_are_examples() -> None:
    assert len(TESTS) >= 5
    assert len([block for block in PLAIN if "from holdfast import Application" in block.text]) >= 5


def test_each_block_has_a_language_that_is_taken_care_of() -> None:
    assert {block.language for block in code_blocks()} <= LANGUAGES
    fences = sum(len(re.findall(r"^```", page.read_text(encoding="utf-8"), re.M)) for page in PAGES)
    assert fences == 2 * len(list(code_blocks())), "a block is indented or not closed"


@pytest.mark.parametrize("block", cases(PYTHON))
def test_an_example_is_python(block: CodeBlock) -> None:
    compile(block.text, block.name, "exec")


@pytest.mark.parametrize("block", cases(PLAIN))
def test_an_example_runs(block: CodeBlock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that the block declares also processes a message of each input."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Application, "run", lambda self, *_, **__: ran.append(self))
    ran: list[Application] = []
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block.text, block.name, "exec"), names)
    declared = {id(made): made for made in [*names.values(), *ran] if isinstance(made, Application)}
    for application in declared.values():
        process_one_of_each(application)


def process_one_of_each(application: Application) -> None:
    """Run the application on empty topics, then on one message in each input topic."""
    inputs = application.topology().sources
    cluster = InMemoryCluster()
    for topic in inputs:
        cluster.create_topic(topic.name, config=topic.config)
    if inputs:
        cluster.run(application)
    for topic in inputs:
        cluster.produce(topic.name, json.dumps({"amount": 1}).encode(), b"key")
    if inputs:
        cluster.run(application)
        kept = [cluster.read(spec.topic.name) for spec in application.topology().changelogs]
        assert all(kept)
        committed = cluster.committed_offsets(application.consumer_group)
        assert [committed[Partition(topic.name, 0)] for topic in inputs] == [1] * len(inputs)


@pytest.mark.slow
def test_examples_that_are_tests_pass(tmp_path: Path) -> None:
    count = 0
    for block in TESTS:
        name = re.sub(r"\W+", "_", block.name)
        (tmp_path / f"test_{name}.py").write_text(block.text, encoding="utf-8")
        count += len(re.findall(r"^def test_", block.text, re.M))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "HOLDFAST_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed" in done.stdout


@pytest.mark.parametrize("block", cases(list(code_blocks("json", "yaml", "toml"))))
def test_a_document_can_be_read(block: CodeBlock) -> None:
    read = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}[block.language]
    assert read(block.text)


def test_what_is_not_run_is_of_other_languages_or_says_what_it_needs() -> None:
    assert [block.name for block in code_blocks("java") if not block.reason] == []
    assert all(len(block.reason.split()) >= 3 for block in code_blocks() if block.reason)
