"""Changelog assets, their checks, and the audit, on a real broker."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Producer

from assets import keys
from assets.changelogs import CONFIG_MATCHES, PARTITIONS_MATCH
from assets.checks import COMPACTION
from assets.factory import build_processor
from infra.kafka.records import TopicSpec
from infra.kafka.topics import Topics
from orchestration.resources import build_resources
from processors import Application
from processors.changelog.format import META_KEY
from processors.lifecycle.audit import AuditImpossible, fingerprint_changelog
from processors.lifecycle.compaction import judge_compaction, read_compaction
from processors.registration import ProcessorDefinition
from processors.state.fingerprint import fingerprint_of

PROJECT = Path(__file__).resolve().parent.parent.parent


def count(value: object, state: object) -> object:
    return value


@pytest.fixture
def definition(
    broker: str, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ProcessorDefinition:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", broker)
    group = unique("assets")
    application = Application(broker, consumer_group=group)
    application.dataframe(application.topic(f"{group}-in")).apply(count, stateful=True, store="counts").to_topic(
        application.topic(f"{group}-out")
    )
    Topics(broker).create(TopicSpec(f"{group}-in", 3, 1))
    return ProcessorDefinition(group, application, application.topology(), "", (), "tests:application")


def run(
    definition: ProcessorDefinition, instance: dg.DagsterInstance, **selection: object
) -> dg.ExecuteInProcessResult:
    definitions = dg.Definitions.merge(build_processor(definition), dg.Definitions(resources=build_resources()))
    job = definitions.resolve_implicit_global_asset_job_def()
    if "checks" in selection:
        job = job.get_subset(asset_check_selection=selection["checks"])  # type: ignore[arg-type]
        return job.execute_in_process(instance=instance, raise_on_error=False)
    return job.execute_in_process(
        instance=instance,
        asset_selection=[keys.changelog_key(definition.name, "counts")],
        raise_on_error=False,
    )


def checks_of(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {each.check_name: each.passed for each in result.get_asset_check_evaluations()}


def test_materialising_creates_the_topics_once(definition: ProcessorDefinition, broker: str) -> None:
    changelog = f"{definition.name}-counts-changelog"
    with dg.DagsterInstance.ephemeral() as instance:
        first = run(definition, instance)
        facts = Topics(broker).describe([changelog])[changelog]
        second = run(definition, instance)
        again = Topics(broker).describe([changelog])[changelog]
    assert first.success
    assert second.success
    assert checks_of(first) == {CONFIG_MATCHES: True, PARTITIONS_MATCH: True, COMPACTION: True}
    assert facts.partitions == 3
    assert facts.config["cleanup.policy"] == "compact"
    assert again == facts
    metadata = second.asset_materializations_for_node(second.get_step_success_events()[0].node_name)[0].metadata
    assert metadata["explanation"].value == "nothing to do"
    assert metadata["stages_applied"].value == 0


def test_drift_is_warned_of_and_repaired(definition: ProcessorDefinition, broker: str) -> None:
    changelog, topics = f"{definition.name}-counts-changelog", Topics(broker)
    check = dg.AssetCheckKey(keys.changelog_key(definition.name, "counts"), COMPACTION)
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(definition, instance).success
        assert checks_of(run(definition, instance, checks={check})) == {COMPACTION: True}
        topics.alter(changelog, {"cleanup.policy": "delete"})

        drifted = run(definition, instance, checks={check})
        (evaluation,) = drifted.get_asset_check_evaluations()
        assert drifted.success
        assert not evaluation.passed
        assert evaluation.severity == dg.AssetCheckSeverity.WARN
        assert "cleanup.policy is delete, expected compact" in (evaluation.description or "")

        assert checks_of(run(definition, instance)) == {CONFIG_MATCHES: True, PARTITIONS_MATCH: True, COMPACTION: True}
        assert checks_of(run(definition, instance, checks={check})) == {COMPACTION: True}
    assert topics.describe([changelog])[changelog].config["cleanup.policy"] == "compact"


def test_a_changelog_of_another_width_is_refused_and_left(definition: ProcessorDefinition, broker: str) -> None:
    changelog, topics = f"{definition.name}-counts-changelog", Topics(broker)
    topics.create(TopicSpec(changelog, 2, 1, {"cleanup.policy": "delete"}))
    with dg.DagsterInstance.ephemeral() as instance:
        result = run(definition, instance)
    assert not result.success
    assert checks_of(result)[PARTITIONS_MATCH] is False
    facts = topics.describe([changelog, f"{definition.name}-out"])
    assert facts[changelog].partitions == 2
    assert facts[changelog].config["cleanup.policy"] == "delete"
    assert f"{definition.name}-out" not in facts


def test_the_audit_folds_committed_records_up_to_an_offset(broker: str, unique: Callable[[str], str]) -> None:
    topic = unique("audit-changelog")
    Topics(broker).create(TopicSpec(topic, 1, 1))
    producer = Producer({"bootstrap.servers": broker, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for key, value in ((b"a", b"1"), (b"b", b"1"), (META_KEY, b"{}"), (b"a", b"2"), (b"b", None)):
        producer.produce(topic, value, key, partition=0)
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"never", b"a", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)

    end = Topics(broker).settled_end_offsets(topic)[0]
    folded = fingerprint_changelog(broker, topic, 0, end)
    assert folded.fingerprint == fingerprint_of([(b"a", b"2")])
    assert folded.records == 5
    assert fingerprint_changelog(broker, topic, 0, 2).fingerprint == fingerprint_of([(b"a", b"1"), (b"b", b"1")])
    with pytest.raises(AuditImpossible) as refused:
        fingerprint_changelog(broker, topic, 0, end + 1)
    assert refused.value.fields["seen"] == end


def test_a_transaction_that_stays_open_is_told(broker: str, unique: Callable[[str], str]) -> None:
    topic, topics = unique("hanging-changelog"), Topics(broker)
    topics.create(TopicSpec(topic, 1, 1))
    assert read_compaction(topics, topic).partitions[0].stood_still_s == 0
    producer = Producer({"bootstrap.servers": broker, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"1", b"a", partition=0)
    producer.flush(30)
    facts = read_compaction(topics, topic, patience_s=1.0)
    assert [each.kind for each in judge_compaction(TopicSpec(topic), facts, patience_s=1.0)] == ["hanging"]
    producer.commit_transaction(30)
    facts = read_compaction(topics, topic, patience_s=1.0)
    assert judge_compaction(TopicSpec(topic), facts, patience_s=1.0) == ()


def test_loading_assets_loads_neither_spark_nor_a_store() -> None:
    code = (
        "import sys, assets.factory, processors.definitions.fleet\n"
        "heavy = {'pyspark', 'py4j', 'pyiceberg', 'pandas', 'rocksdict'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env=dict(os.environ), check=True, timeout=60)
