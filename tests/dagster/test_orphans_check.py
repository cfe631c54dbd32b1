"""The check of orphans in a real installation lists resources without an owner.

They come from a dropped store, a removed processor, and a state folder that was moved aside.
"""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer

from holdfast.assets import keys
from holdfast.assets.checks.orphans import ALL_OWNED
from holdfast.infra.kafka.records import TopicSpec
from holdfast.orchestration import cli
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.jobs.lifecycle_verbs import CleanConfig
from holdfast.processors.engine.changelog.format import META_KEY
from tests.kafka.orphans.leaving import signed_by
from tests.parts.operated import Operated


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["orphans", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def checked(operated: Operated) -> dg.AssetCheckEvaluation:
    job = build_definitions(operated.settings).resolve_job_def("orphan_checks")
    with dg.DagsterInstance.ephemeral() as instance:
        (found,) = job.execute_in_process(instance=instance).get_asset_check_evaluations()
    assert (found.asset_key, found.check_name) == (keys.orphans_key(), ALL_OWNED)
    return found


def test_what_runs_has_an_owner_and_what_is_left_has_none(
    operated: Operated, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    operated.bring_up()
    operated.feed(keys=10, each=1)
    operated.processed(10)
    operated.client.checkpoint()
    group, paths = operated.group, operated.settings.paths
    assert listed(capsys) == {"orphans": [], "unseen": []}
    assert checked(operated).passed

    operated.topics.create(TopicSpec(f"{group}-old-changelog", 1, 1))
    sign(operated, f"{group}-old-changelog")
    operated.topics.create(TopicSpec(f"{group}-mine", 1, 1))  # another program's topic, not a changelog of Holdfast
    aside = paths.state / group / "0" / f"{group}-in-0.corrupt"
    former = paths.state / f"{group}-former" / "0" / "in-0"
    for folder in (aside, former):
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(b"x" * 100)
    operated.topics.create(TopicSpec(f"{group}-former-counts-changelog", 1, 1))

    found = {(each["kind"], each["name"]): each for each in listed(capsys)["orphans"]}
    assert sorted(found) == sorted(
        [
            ("state", str(aside)),
            ("state", str(former)),
            ("topic", f"{group}-former-counts-changelog"),
            ("topic", f"{group}-old-changelog"),
        ]
    )
    assert found["state", str(aside)]["size_bytes"] == 100
    said = checked(operated)
    assert not said.passed
    assert said.severity is dg.AssetCheckSeverity.WARN
    assert f"{group}-old-changelog (no store of {group} has this changelog)" in (said.description or "")
    assert operated.topics.describe([f"{group}-old-changelog"]), "nothing is deleted by looking"

    archived_then_deleted_by_the_job(operated, capsys, monkeypatch)


def sign(operated: Operated, topic: str) -> None:
    """Write a meta record (the engine's own record in a changelog) that names the processor, as its workers do."""
    producer = Producer({"bootstrap.servers": operated.topics.bootstrap})
    producer.produce(topic, signed_by(operated.group), META_KEY)
    assert producer.flush(30) == 0


def archived_then_deleted_by_the_job(
    operated: Operated, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job archives the planned topic, and the check shows the archive.

    After the grace period, the plan's hash confirms the topic's deletion.
    """
    topic, only = f"{operated.group}-old-changelog", ["topic"]
    shown = launched(operated, only=only)
    assert shown["stages"] == 2
    launched(operated, only=only, dry_run=False, confirm=shown["plan"])
    found = {each["name"]: each for each in listed(capsys)["orphans"]}
    assert found[topic]["archived_at"] is not None
    assert found[topic]["deletable_from"] > found[topic]["archived_at"]
    assert "archived 20" in (checked(operated).description or "")

    assert cli.main(["explain", "clean", "--only", topic]) == 0
    assert "can be deleted from" in capsys.readouterr().out
    monkeypatch.setenv("HOLDFAST_ORPHAN_GRACE_DAYS", "0")
    assert not launched(operated, only=only, dry_run=False, ok=False)
    assert cli.main(["plan", "clean", "--only", topic, "--json"]) == 2
    plan = json.loads(capsys.readouterr().out)
    assert plan["destructive"]
    assert cli.main(["apply", "clean", "--only", topic, "--plan", "0" * 12]) == 3
    assert cli.main(["apply", "clean", "--only", topic, "--plan", plan["hash"]]) == 0
    assert operated.topics.describe([topic]) == {}
    assert cli.main(["apply", "put-back", topic]) == 0
    assert operated.topics.describe([topic])
    assert cli.main(["apply", "put-back", topic]) == 3
    assert cli.main(["plan", "clean", "--only", "no-such-orphan"]) == 3


def launched(
    operated: Operated, *, only: list[str], dry_run: bool = True, confirm: str = "", ok: bool = True
) -> dict[str, Any]:
    job = build_definitions(operated.settings).resolve_job_def("archive_orphans")
    config = CleanConfig(dry_run=dry_run, confirm=confirm, only=only)
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(
            dg.RunConfig(ops={"archive_one": config}), instance=instance, raise_on_error=False
        )
        assert done.success is ok
        events = [event for event in done.all_events if event.is_successful_output]
        return {name: value.value for event in events for name, value in event.step_output_data.metadata.items()}


@pytest.mark.thorough
def test_a_definition_that_cannot_be_imported_hides_no_orphan_of_others_and_loses_nothing(
    operated: Operated, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    operated.bring_up()
    monkeypatch.setenv("HOLDFAST_PROCESSORS", '["no_such_module:application"]')
    assert listed(capsys)["orphans"] == [], "it is deployed still"


def test_what_cannot_be_looked_at_is_said(
    operated: Operated, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "catalog.db"
    broken.write_text("this is no database")
    monkeypatch.setenv("HOLDFAST_WAREHOUSE__CATALOG_URL", f"sqlite:///{broken}")
    (sentence,) = listed(capsys)["unseen"]
    assert sentence.startswith("The warehouse could not be read")
    assert not checked(operated).passed
