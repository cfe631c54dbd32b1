"""A user has no ACLs on a broker. Each refusal names the missing ACL.

With the named ACLs, all operations succeed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast import Application
from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.errors import AccessRefused, BrokerUnreachable
from holdfast.infra.kafka.inspection.hanging_transactions import state_of
from holdfast.infra.kafka.inspection.inspection import Inspector
from holdfast.infra.kafka.records import Partition, TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.sampling import sample
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import load_settings
from holdfast.infra.setup.java import Java
from holdfast.infra.system.ports import free_port
from holdfast.processors.engine import provisioning
from holdfast.processors.lifecycle.health.compaction_facts import look_closer, read_compaction
from tests.kafka.secured import ADMIN, SecuredBroker
from tests.mechanics.tiers import variants

OPERATIONS = {
    "Alter": "ALTER",
    "AlterConfigs": "ALTER_CONFIGS",
    "Create": "CREATE",
    "Delete": "DELETE",
    "Describe": "DESCRIBE",
    "DescribeConfigs": "DESCRIBE_CONFIGS",
    "Read": "READ",
    "Write": "WRITE",
}


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, java: Java, broker_jars: tuple[Path, ...]
) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"), java, broker_jars)
    broker.start(120)
    yield broker
    broker.stop()


@pytest.fixture
def user(secured: SecuredBroker, unique: Callable[[str], str], waiting: Callable[..., Any]) -> dict[str, str]:
    """The client settings of a new user without rights."""
    config = secured.add_user(unique("user"), "user-secret")
    waiting(lambda: admitted(secured, config), "the broker to know the user")
    return config


@pytest.fixture
def topic(secured: SecuredBroker, unique: Callable[[str], str]) -> str:
    """A topic of two partitions with one record. At first, only the administrator has access to the topic."""
    name = unique("orders")
    admin(secured).create(TopicSpec(name, 2, 1, {"cleanup.policy": "compact"}))
    feed(secured, name, 1)
    return name


def admin(secured: SecuredBroker) -> Topics:
    return Topics(secured.bootstrap, secured.config(*ADMIN))


def admitted(secured: SecuredBroker, config: dict[str, str]) -> bool:
    try:
        return Topics(secured.bootstrap, config, timeout_s=2).ping() == 1
    except BrokerUnreachable:
        return False


def feed(secured: SecuredBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": secured.bootstrap, **secured.config(*ADMIN)})
    for number in range(count):
        producer.produce(topic, b"%d" % number, b"k", partition=0)
    assert producer.flush(30) == 0


def allow(secured: SecuredBroker, refusal: AccessRefused) -> tuple[str, str, str]:
    """Add the ACL that a refusal names. Returns (operation, resource kind, resource name)."""
    words = shlex.split(refusal.fields["rule"])
    operation, kind, *name = words[words.index("--operation") + 1 :]
    user = words[words.index("--allow-principal") + 1].removeprefix("User:")
    added = (operation, kind.removeprefix("--"), name[0] if name else "")
    secured.allow(user, OPERATIONS[operation], *added[1:])
    return added


REFUSED: list[tuple[str, Callable[[Topics, str], Any], str, str]] = [
    ("describe", lambda topics, name: topics.describe([name]), "Describe", "topic {}"),
    ("create", lambda topics, name: topics.create(TopicSpec(f"{name}-new", 1, 1)), "Create", "topic {}-new"),
    ("alter", lambda topics, name: topics.alter(name, {"retention.ms": "5"}), "AlterConfigs", "topic {}"),
    ("delete", lambda topics, name: topics.delete(name), "Delete", "topic {}"),
    ("ends", lambda topics, name: topics.end_offsets(name, committed=True), "Describe", "topic {}"),
    ("starts", lambda topics, name: topics.start_offsets(name), "Describe", "topic {}"),
    ("members", lambda topics, name: topics.members(f"{name}-g"), "Describe", "group {}-g"),
    ("members again", lambda topics, name: [topics.members(f"{name}-g") for _ in range(2)], "Describe", "group {}-g"),
    ("shares", lambda topics, name: topics.group_shares(f"{name}-g"), "Describe", "group {}-g"),
    ("offsets", lambda topics, name: topics.committed_offsets(f"{name}-g"), "Describe", "group {}-g"),
    ("offsets of", lambda topics, name: topics.committed_offsets(f"{name}-g", [name]), "Describe", "topic {}"),
]


@pytest.mark.parametrize(
    ("ask", "operation", "resource"),
    # by default, test only three operations: one that reads topics, one that changes a topic, and one that reads groups
    [
        pytest.param(*each, id=name, marks=() if name in {"describe", "alter", "offsets"} else pytest.mark.thorough)
        for name, *each in REFUSED
    ],
)
def test_a_refused_call_names_operation_resource_and_rule(
    secured: SecuredBroker,
    user: dict[str, str],
    topic: str,
    ask: Callable[[Topics, str], Any],
    operation: str,
    resource: str,
) -> None:
    with pytest.raises(AccessRefused) as refused:
        ask(Topics(secured.bootstrap, user, timeout_s=5), topic)
    fields = refused.value.fields
    assert (fields["operation"], fields["resource"]) == (operation, resource.format(topic))
    assert fields["rule"].startswith(f"kafka-acls.sh --add --allow-principal User:{user['sasl.username']} ")
    assert "127.0.0.1" not in str(refused.value)
    assert admin(secured).describe([topic])[topic].config.get("retention.ms") != "5"


def test_a_config_that_may_not_be_read_is_no_empty_one(
    secured: SecuredBroker, user: dict[str, str], topic: str
) -> None:
    secured.allow(user["sasl.username"], "DESCRIBE", "topic", topic)
    with pytest.raises(AccessRefused, match="DescribeConfigs topic"):
        Topics(secured.bootstrap, user, timeout_s=5).describe([topic])


def test_a_group_that_is_not_there_is_told_from_one_that_may_not_be_seen(
    secured: SecuredBroker, user: dict[str, str], topic: str
) -> None:
    secured.allow(user["sasl.username"], "DESCRIBE", "group", f"{topic}-g")
    topics = Topics(secured.bootstrap, user, timeout_s=20)
    assert topics.members(f"{topic}-g") == 0
    assert topics.group_shares(f"{topic}-g") is None
    assert topics.committed_offsets(f"{topic}-g") == {}


def test_records_that_may_not_be_read_name_the_rule_and_need_no_group(
    secured: SecuredBroker, user: dict[str, str], topic: str
) -> None:
    secured.allow(user["sasl.username"], "DESCRIBE", "topic", topic)
    place = Partition(topic, 0)
    with pytest.raises(AccessRefused, match=f"Read topic {topic}"):
        list(read_range(secured.bootstrap, topic, 0, 0, 1, extra_config=user))
    with pytest.raises(AccessRefused, match=f"Read topic {topic}") as refused:
        sample(secured.bootstrap, [(place, 0)], user)
    allow(secured, refused.value)
    assert [record.value for record in read_range(secured.bootstrap, topic, 0, 0, 1, extra_config=user)] == [b"0"]
    (window,) = sample(secured.bootstrap, [(place, 0)], user)
    assert len(window.records) == 1


def test_sizes_and_transactions_are_not_believed_to_be_none(
    secured: SecuredBroker, user: dict[str, str], topic: str
) -> None:
    secured.allow(user["sasl.username"], "DESCRIBE", "topic", topic)
    with Inspector(secured.bootstrap, user) as inspector:
        with pytest.raises(AccessRefused, match="Describe the cluster") as refused:
            inspector.sizes(topic, [0, 1])
        allow(secured, refused.value)
        assert inspector.sizes(topic, [0, 1])[0] > 0
        with pytest.raises(AccessRefused, match=f"Read topic {topic}") as refused:
            inspector.open_transactions(topic, [0, 1])
        allow(secured, refused.value)
        assert inspector.open_transactions(topic, [0, 1]) == ()

        writer = Producer(
            {
                "bootstrap.servers": secured.bootstrap,
                "transactional.id": f"{topic}-writer",
                **secured.config(*ADMIN),
                "log_level": 0,
            }
        )
        writer.init_transactions(30)
        writer.begin_transaction()
        writer.produce(topic, b"1", b"a", partition=1)
        assert writer.flush(30) == 0
        (hidden,) = inspector.open_transactions(topic, [0, 1])
        assert (hidden.transactional_id, state_of(hidden)) == (None, "unexplained"), "not ours to see, and not hanging"
        with pytest.raises(AccessRefused, match="Alter the cluster"):
            inspector.abort(hidden)
        secured.allow(user["sasl.username"], "DESCRIBE", "transactional-id", f"{topic}-writer")
        (seen,) = inspector.open_transactions(topic, [0, 1])
        assert (seen.transactional_id, state_of(seen)) == (f"{topic}-writer", "open")
        writer.abort_transaction(30)


def test_a_check_with_few_rights_says_what_it_could_not_know(
    secured: SecuredBroker, user: dict[str, str], topic: str
) -> None:
    for operation in ("DESCRIBE", "DESCRIBE_CONFIGS"):
        secured.allow(user["sasl.username"], operation, "topic", topic)
    topics = Topics(secured.bootstrap, user, timeout_s=20)
    facts = look_closer(read_compaction(topics, topic), topics, client_config=user)
    assert [part.span for part in facts.partitions] == [1, 0]
    assert (facts.size_bytes, facts.records) == (None, None)
    sizes, samples = facts.unknown
    assert "--operation Describe --cluster" in sizes
    assert f"--operation Read --topic {topic}" in samples


def test_a_plan_without_rights_changes_nothing_and_names_the_rule(
    secured: SecuredBroker, user: dict[str, str], topic: str
) -> None:
    app = Application(secured.bootstrap, consumer_group=f"{topic}-app")
    app.dataframe(app.topic(topic)).apply(lambda value, state: value, stateful=True, store="s")
    topology, topics = app.topology(), Topics(secured.bootstrap, user, timeout_s=5)
    decided = provisioning.plan(topology, provisioning.read_facts(admin(secured), topology), 1)
    with pytest.raises(AccessRefused, match=f"Create topic {topic}-app-s-changelog"):
        provisioning.apply(decided, topics)
    assert f"{topic}-app-s-changelog" not in admin(secured).describe([f"{topic}-app-s-changelog"])


@pytest.mark.parametrize(
    ("change", "said"),
    variants(
        [
            pytest.param({"sasl.password": "wrong"}, "because of user and password", id="password"),
            pytest.param({"ssl.ca.location": ""}, "because of certificates", id="certificate"),
        ]
    ),
)
def test_not_being_let_in_is_told_with_its_reason(
    secured: SecuredBroker, user: dict[str, str], change: dict[str, str], said: str
) -> None:
    config = {name: value for name, value in {**user, **change}.items() if value}
    with pytest.raises(BrokerUnreachable, match=said):
        Topics(secured.bootstrap, config, timeout_s=3).ping()
    with pytest.raises(BrokerUnreachable):
        Inspector(secured.bootstrap, config, timeout_s=3)


@pytest.mark.thorough
def test_a_broker_that_asks_for_a_password_is_told_from_one_that_is_not_there(secured: SecuredBroker) -> None:
    with pytest.raises(BrokerUnreachable, match="A program listens at 127.0.0.1") as asked:
        Topics(secured.bootstrap, timeout_s=3).ping()
    assert "`HOLDFAST_KAFKA__CLIENT_CONFIG`" in asked.value.action
    with pytest.raises(BrokerUnreachable, match="did not list the brokers") as absent:
        Topics(f"127.0.0.1:{free_port()}", timeout_s=3).ping()
    assert absent.value.exit_code == asked.value.exit_code == 69


def test_the_rules_that_a_worker_names_are_all_that_it_needs(
    secured: SecuredBroker, user: dict[str, str], unique: Callable[[str], str], tmp_path: Path, monkeypatch: Any
) -> None:
    group = unique("worker")
    admin(secured).create(TopicSpec(f"{group}-in", 1, 1))
    feed(secured, f"{group}-in", 10)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    settings = load_settings()

    def run() -> None:
        app = Application(
            secured.bootstrap,
            consumer_group=group,
            state_dir=tmp_path / "state",  # the id of the state folder is a part of the transactional id
            auto_offset_reset="earliest",
            commit_interval=0.2,
            slot="0",
            loglevel=None,
            broker_availability_timeout=30,
        )
        frame = app.dataframe(app.topic(f"{group}-in"))
        frame.apply(counted, stateful=True, store="counts").to_topic(app.topic(f"{group}-out"))
        cluster = KafkaCluster(secured.bootstrap, client_config=user)
        app.run_on(cluster, settings, count=10, timeout=30)

    added = []
    for _ in range(30):
        try:
            run()
            break
        except AccessRefused as refused:
            rule = allow(secured, refused)
            if rule not in added[-1:]:  # the broker applies a new rule a moment after it has accepted it
                added.append(rule)
    assert sorted(set(added)) == sorted(added), "no rule is asked for twice"
    changelog = f"{group}-counts-changelog"
    assert set(added) == {
        *((operation, "topic", name) for operation in ("Describe", "DescribeConfigs") for name in (f"{group}-in",)),
        *(
            (operation, "topic", name)
            for operation in ("Describe", "DescribeConfigs", "Create", "Write")
            for name in (f"{group}-out", changelog)
        ),
        ("Read", "topic", f"{group}-in"),
        ("Read", "group", group),
        ("Write", "transactional-id", next(name for _, kind, name in added if kind == "transactional-id")),
    }
    ends = admin(secured).settled_end_offsets(f"{group}-out")
    values = [
        json.loads(record.value)
        for record in read_range(secured.bootstrap, f"{group}-out", 0, 0, ends[0], extra_config=secured.config(*ADMIN))
    ]
    assert values == list(range(1, 11)), "each message once"


def counted(value: int, state: Any) -> int:
    total = int(state.get("n", 0)) + 1
    state.set("n", total)
    return total
