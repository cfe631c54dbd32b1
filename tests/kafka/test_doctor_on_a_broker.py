"""`holdfast doctor` on a real broker checks broker, rights, topics and settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.kafka.inspection import cluster_facts
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.json_documents import ANSWERS
from tests.mechanics.tiers import variants

DEFINITION = """
from holdfast import Application

application = Application(consumer_group="{group}", use_changelog_topics=False)
application.dataframe(application.topic("{group}-in")).to_topic(application.topic("{group}-out"))
"""


def defined(group: str, broker: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write an importable module of a processor. Point the settings to a home that does not exist yet."""
    module = f"definition_{group.replace('-', '_')}"
    (folder / f"{module}.py").write_text(DEFINITION.format(group=group))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("HOLDFAST_HOME", str(folder / "home"))
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", broker)
    return module


def test_the_doctor_sees_broker_rights_topics_and_what_is_misspelt(
    broker: str,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    group = unique("patient")
    module = defined(group, broker, tmp_path, monkeypatch)
    monkeypatch.setenv("HOLDFAST_PROCESSORS", json.dumps([f"{module}:application", "no_such_module:app"]))
    monkeypatch.setenv("HOLDFAST_RESTORE_TARGET", "5")
    Topics(broker).create(TopicSpec(f"{group}-in", 1, 1))

    assert main(["doctor", "--json"]) == 1, "a module can't be imported"
    told = json.loads(capfd.readouterr().out)
    ANSWERS["doctor"].validate_python(told, strict=True)
    found = {each["name"]: each for each in told["findings"]}
    assert told["verdict"] == "fail"
    assert {name for name, each in found.items() if each["verdict"] == "fail"} == {"processor no_such_module:app"}
    assert found["broker"]["seen"] == "1 broker(s) answer"
    assert found["broker version"]["seen"] == "4.0 or newer"
    assert found["broker clock"]["verdict"] == "ok"
    assert found[f"rights of {group}"]["verdict"] == "ok"
    assert found[f"topic {group}-in"]["seen"].startswith("replication 1")
    assert found["setting HOLDFAST_RESTORE_TARGET"]["action"] == "Rename it to `HOLDFAST_RESTORE_TARGET_S`."
    assert not (tmp_path / "home").exists(), "the doctor creates nothing"

    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:9")
    assert main(["doctor"]) == 1
    assert "fail broker: " in capfd.readouterr().out


@pytest.mark.parametrize("words", variants(["up", "run {module}:application"]))
def test_brokers_that_are_too_old_are_refused_before_anything_starts(
    words: str,
    broker: str,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    group = unique("newer")
    module = defined(group, broker, tmp_path, monkeypatch)
    # Simulates an old broker, because real old brokers don't run on the present Java version.
    monkeypatch.setattr(cluster_facts, "BROKER_FROM", (99, 0))
    assert main(words.format(module=module).split()) == EXIT_BAD_CONFIGURATION
    said = capfd.readouterr().err
    assert f"The brokers at {broker} are of version 4; Holdfast needs 99.0 or newer." in said
    assert "Upgrade the brokers" in said
    assert not (tmp_path / "home" / "run").exists()
    assert Topics(broker).describe([f"{group}-in", f"{group}-out"]) == {}
