"""`holdfast doctor` judges facts that it has read from the cluster. Tests the verdict, and the text of each finding."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.infra.kafka.inspection.cluster_facts import ClusterFacts
from holdfast.infra.kafka.records import TopicFacts
from holdfast.orchestration.doctor import judging
from holdfast.orchestration.doctor.judging import Finding
from tests.unit.processors.lifecycle.worlds import orders_topology

GIB = 1 << 30
TOPOLOGY = orders_topology()
ALL = frozenset({"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE"})
NOW_MS = 1_800_000_000_000


def cluster(**changes: Any) -> ClusterFacts:
    allowed: dict[Any, Any] = {("topic", spec.name): ALL for spec in TOPOLOGY.topics()}
    allowed["group", "orders"] = frozenset({"READ", "DESCRIBE"})
    return ClusterFacts(**{"brokers": 3, "version": "4", "stamp_ms": NOW_MS, "allowed": allowed, **changes})


def topic(replication: int, least: str) -> TopicFacts:
    return TopicFacts("orders-totals", "id", 2, replication, {"min.insync.replicas": least})


@pytest.mark.parametrize(
    ("finding", "verdict", "words"),
    [
        (judging.judge_python((3, 11, 7)), "ok", "3.11.7"),
        (judging.judge_python((3, 10, 1)), "fail", "Install Python"),
        (judging.judge_python((3, 15, 0)), "warn", "not tried"),
        (judging.judge_java(21, "PATH", needed=True, oldest=17), "ok", "21, from PATH"),
        (judging.judge_java(None, "tried PATH", needed=True, oldest=17), "fail", "Java 17"),
        (judging.judge_java(None, "tried PATH", needed=False, oldest=17), "warn", "JAVA_HOME"),
        (judging.judge_memory(8 * GIB), "ok", "8.0 GiB"),
        (judging.judge_memory(2 * GIB), "warn", "elsewhere"),
        (judging.judge_memory(GIB // 2), "fail", "larger machine"),
        (judging.judge_memory(None), "warn", "by hand"),
        (judging.judge_disk(50 * GIB, 100 * GIB, 10), "ok", "50 %"),
        (judging.judge_disk(5 * GIB, 100 * GIB, 10), "warn", "status --sizes"),
        (judging.judge_disk(GIB // 2, GIB, 10), "fail", "status --sizes"),
        (judging.judge_port(3000, free=True, ours=False), "ok", "free"),
        (judging.judge_port(3000, free=False, ours=True), "ok", "webserver"),
        (judging.judge_queue(-1), "ok", "waits for no other runs"),
        (judging.judge_queue(4), "warn", "while 4 other runs are in progress"),
        (judging.judge_port(3000, free=False, ours=False), "warn", "another port"),
        (judging.judge_home(None, None, 1000, writable=True, umask=0o077), "ok", "does not exist yet"),
        (judging.judge_home(None, None, 1000, writable=False, umask=0o077), "fail", "HOLDFAST_HOME"),
        (judging.judge_home(0o700, 1000, 1000, writable=True, umask=0o077), "ok", "mode 0700"),
        (judging.judge_home(0o755, 1000, 1000, writable=True, umask=0o077), "warn", "takes the rights away"),
        (judging.judge_home(0o770, 1000, 1000, writable=True, umask=0o007), "ok", "mode 0770"),
        (judging.judge_home(0o700, 0, 1000, writable=True, umask=0o077), "warn", "as user 0"),
        (judging.judge_home(0o500, 1000, 1000, writable=False, umask=0o077), "fail", "not writable"),
        (judging.judge_topic(topic(3, "2"), 3), "ok", "replication 3"),
        (judging.judge_topic(topic(1, "1"), 1), "ok", "on one broker"),
        (judging.judge_topic(topic(1, "1"), 3), "fail", "more replicas"),
        (judging.judge_topic(topic(3, "1"), 3), "warn", "to 2"),
        (judging.judge_topic(topic(2, "2"), 2), "warn", "nothing can be written"),
        (judging.judge_database_clock(-0.4), "ok", "-0.4 s"),
        (judging.judge_database_clock(-9.0), "warn", "NTP"),
        (judging.judge_database_clock(90.0), "fail", "NTP"),
        (judging.judge_rights(TOPOLOGY, cluster(), "User:a"), "ok", "all of"),
        (judging.judge_rights(TOPOLOGY, cluster(allowed={}), "User:a"), "ok", "the others unknown"),
    ],
)
def test_a_finding_says_what_was_seen_and_what_to_do(finding: Finding, verdict: str, words: str) -> None:
    assert finding.verdict == verdict
    assert words in f"{finding.seen} {finding.action}"
    assert bool(finding.action) == (verdict != "ok") or not finding.action


def test_a_missing_right_is_named_with_its_rule() -> None:
    facts = cluster()
    allowed = {**facts.allowed, ("topic", "placed"): frozenset({"DESCRIBE", "DESCRIBE_CONFIGS"})}
    found = judging.judge_rights(TOPOLOGY, cluster(allowed=allowed), "User:orders")
    assert found.verdict == "fail"
    assert found.seen == "no Read on topic placed"
    assert "--allow-principal User:orders --operation Read --topic placed" in found.action


@pytest.mark.parametrize(("version", "verdict"), [("4", "ok"), ("3.7-IV4", "ok"), ("2.8-IV1", "fail"), (None, "warn")])
def test_an_old_broker_is_told(version: str | None, verdict: str) -> None:
    found = {each.name: each for each in judging.judge_broker(cluster(version=version), NOW_MS)}
    assert found["broker version"].verdict == verdict
    assert found["broker"].seen == "3 broker(s) answer"


@pytest.mark.parametrize(
    ("stamp_ms", "verdict"),
    [
        (None, "ok"),
        (NOW_MS - 3_600_000, "ok"),
        (NOW_MS + 1_000, "ok"),
        (NOW_MS + 9_000, "warn"),
        (NOW_MS + 99_000, "fail"),
    ],
)
def test_a_broker_ahead_of_this_machine_is_told(stamp_ms: int | None, verdict: str) -> None:
    (found,) = (
        each for each in judging.judge_broker(cluster(stamp_ms=stamp_ms), NOW_MS) if each.name == "broker clock"
    )
    assert found.verdict == verdict


def test_extras_and_settings_are_told_one_by_one() -> None:
    whole, lacking = judging.judge_extras({"dagster": [], "spark": ["pyspark"]})
    assert (whole.verdict, lacking.verdict) == ("ok", "warn")
    assert "without pyspark" in lacking.seen
    (known,) = judging.judge_settings({})
    assert known.verdict == "ok"
    near, far = judging.judge_settings({"HOLDFAST_HOMME": "HOLDFAST_HOME", "HOLDFAST_XYZ": None})
    assert near.action == "Rename it to `HOLDFAST_HOME`."
    assert far.action == "Remove `HOLDFAST_XYZ`."


def test_the_worst_verdict_counts() -> None:
    ok, warn, fail = (Finding("x", each, "") for each in ("ok", "warn", "fail"))  # type: ignore[arg-type]
    assert [judging.worst(each) for each in ([ok], [ok, warn], [warn, fail, ok])] == ["ok", "warn", "fail"]
