"""Changelog assets on a real broker create topics. Their checks find drift, and their audit compacts the records."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Producer

from holdfast.assets import keys
from holdfast.assets.changelogs import CONFIG_MATCHES, PARTITIONS_MATCH, provisioned
from holdfast.assets.checks.compaction import COMPACTION
from holdfast.assets.factory import build_processor
from holdfast.infra.kafka.records import Partition, TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import load_settings
from holdfast.orchestration.resources import build_resources
from holdfast.orchestration.verbs import open_verbs
from holdfast.orchestration.world import open_registry
from holdfast.processors.application.registration import ProcessorDefinition, find_processor
from holdfast.processors.audits.copies import AuditImpossible, ChangelogCopy
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.state.fingerprint import fingerprint_of
from holdfast.processors.lifecycle.health.compaction import judge_compaction
from holdfast.processors.lifecycle.health.compaction_facts import read_compaction
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.requests import Deploy
from tests.parts.operated import DEFINITION

PROJECT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def definition(
    broker: str, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProcessorDefinition]:
    group = unique("assets")
    module = f"definition_{group.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(DEFINITION.format(group=group))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", broker)
    monkeypatch.setenv("HOLDFAST_PROCESSORS", f'["{module}:application"]')
    Topics(broker).create(TopicSpec(f"{group}-in", 3, 1))
    yield find_processor(load_settings(), group)
    sys.modules.pop(module, None)


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
    assert "nothing to do" in str(metadata["explanation"].value)
    assert metadata["stages_applied"].value == 0
    registry = open_registry(load_settings())
    try:
        recorded = registry.journal.applies(10, processor=definition.name)
    finally:
        registry.close()
    assert [(each.who, each.outcome) for each in recorded] == [(f"dagster run {first.run_id}", "done")]


def test_who_finds_another_apply_under_way_waits_for_it(definition: ProcessorDefinition, broker: str) -> None:
    now = datetime.now(UTC)
    with open_verbs(load_settings(), who="a test") as verbs:
        registry = open_registry(load_settings())
        other = verbs.plan(Deploy(definition.name))
        record, _ = registry.journal.begin_apply(
            processor=definition.name,
            verb="deploy",
            plan_hash=other.hash,
            plan=plans.encode(other),
            who="somebody else",
            holder="elsewhere/1/0",
            now=now,
        )
        waited: list[float] = []

        def other_ends(seconds: float) -> None:
            waited.append(seconds)
            assert registry.journal.end_apply(record.id, record.token, "done", now)

        said: list[str] = []
        plan = provisioned(verbs, definition.name, said.append, other_ends)
        registry.close()
    assert plan.changes
    assert waited == [1.0]
    assert any("Waiting for it" in each for each in said)
    assert f"{definition.name}-counts-changelog" in Topics(broker).describe([f"{definition.name}-counts-changelog"])


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
        remedy = f"holdfast apply provision {definition.name}"
        assert f"Remedy: `{remedy}`" in (evaluation.description or "")
        assert remedy in str(evaluation.metadata["remedy"].value)

        assert checks_of(run(definition, instance)) == {CONFIG_MATCHES: True, PARTITIONS_MATCH: True, COMPACTION: True}
        assert checks_of(run(definition, instance, checks={check})) == {COMPACTION: True}
    assert topics.describe([changelog])[changelog].config["cleanup.policy"] == "compact"


def test_the_check_has_numbers_that_plot(definition: ProcessorDefinition, broker: str) -> None:
    changelog = f"{definition.name}-counts-changelog"
    check = dg.AssetCheckKey(keys.changelog_key(definition.name, "counts"), COMPACTION)
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(definition, instance).success
        producer = Producer({"bootstrap.servers": broker})
        for number in range(30):
            producer.produce(changelog, bytes(1000), b"k", partition=number % 2)
        assert producer.flush(30) == 0
        (evaluation,) = run(definition, instance, checks={check}).get_asset_check_evaluations()
    found = {name: value.value for name, value in evaluation.metadata.items()}
    assert evaluation.passed, evaluation.description
    assert {name: found[name] for name in ("offset_span", "records", "partitions", "replication")} == {
        "offset_span": 30,
        "records": 30,
        "partitions": 3,
        "replication": 1,
    }
    assert 0.02 < found["size_mib"] < 0.1
    assert found["restore_seconds"] < 1
    zeros = ("drifted_entries", "hanging_partitions", "overdue_partitions", "overdue_records", "held_back_offsets")
    assert [found[name] for name in zeros] == [0] * len(zeros)
    assert "unknown" not in found


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

    def folded_to(end: int) -> ChangelogCopy:
        return ChangelogCopy(Topics(broker), Partition(topic, 0), end, {})

    end = Topics(broker).settled_end_offsets(topic)[0]
    folded = folded_to(end)
    assert folded.prints().whole == fingerprint_of([(b"a", b"2")])
    assert folded.records == 5
    assert folded_to(2).prints().whole == fingerprint_of([(b"a", b"1"), (b"b", b"1")])
    with pytest.raises(AuditImpossible) as refused:
        folded_to(end + 1)
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


@pytest.mark.thorough
def test_loading_assets_loads_neither_spark_nor_a_store() -> None:
    code = (
        "import sys, holdfast.assets.factory, holdfast.processors.definitions.fleet\n"
        "heavy = {'pyspark', 'py4j', 'pyiceberg', 'pandas', 'rocksdict'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env=dict(os.environ), check=True, timeout=60)
