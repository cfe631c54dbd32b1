"""Cases for provisioning: facts (what Holdfast has read about topics), and the plan or refusal that must follow."""

import pytest
import structlog

from holdfast import Application, InMemoryCluster, TopicConfig
from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.application.arguments import ApplicationInvalid
from holdfast.processors.engine.changelog.config import CHANGELOG_CONFIG, ChangelogConfigInvalid
from holdfast.processors.engine.provisioning import (
    CreateTopic,
    ProvisionPlan,
    RepairConfig,
    check_before_start,
    plan,
)


def topology(partitions=4, **options):
    app = Application("unused:1", consumer_group="orders", **options)
    frame = app.dataframe(app.topic("in", config=TopicConfig(num_partitions=partitions, replication_factor=1)))
    frame = frame.apply(lambda value, state: value, stateful=True, store="balances")
    frame.to_topic(app.topic("out"))
    return app.topology()


def there(name, partitions=4, **config):
    return TopicFacts(name, f"id-{name}", partitions, 1, {**CHANGELOG_CONFIG, **config})


def all_there(**changelog):
    names = ("in", "out")
    return {name: there(name) for name in names} | {
        "orders-balances-changelog": there("orders-balances-changelog", **changelog)
    }


def test_everything_missing_is_created_with_the_counts_of_the_source():
    stages = plan(topology(), {}).stages
    assert [(type(stage), stage.spec.name, stage.spec.partitions) for stage in stages] == [
        (CreateTopic, "in", 4),
        (CreateTopic, "out", 4),
        (CreateTopic, "orders-balances-changelog", 4),
    ]
    assert dict(stages[2].spec.config) == dict(CHANGELOG_CONFIG)


def test_what_is_there_and_right_needs_nothing():
    decided = plan(topology(), all_there())
    assert decided == ProvisionPlan((), ())


def test_an_existing_source_decides_the_changelogs_count():
    app = Application("unused:1", consumer_group="p")
    app.dataframe(app.topic("in")).apply(lambda value, state: value, stateful=True)
    stages = plan(app.topology(), {"in": there("in", 7)}).stages
    assert [stage.spec.partitions for stage in stages] == [7]


def test_drift_is_repaired_by_plan_and_refused_at_start():
    facts = all_there(**{"cleanup.policy": "delete"})
    decided = plan(topology(), facts)
    (stage,) = decided.stages
    assert isinstance(stage, RepairConfig)
    assert (stage.topic, stage.seen, stage.expected) == (
        "orders-balances-changelog",
        {"cleanup.policy": "delete"},
        {"cleanup.policy": "compact"},
    )
    with pytest.raises(TopicUnusable, match="cleanup.policy=delete, expected compact"):
        check_before_start(topology(), facts, may_create=True)


def test_a_wrong_partition_count_is_refused_with_the_way_out():
    ways = {3: ("source-repartitioned", "--rewind earliest"), 5: ("changelog-repartitioned", "--from local")}
    for count, (cause, way) in ways.items():
        facts = all_there() | {"orders-balances-changelog": there("orders-balances-changelog", count)}
        with pytest.raises(TopicUnusable, match=f"has {count} partitions, its store's inputs have 4") as refused:
            check_before_start(topology(), facts, may_create=True)
        assert (refused.value.cause, way in refused.value.action) == (cause, True)
        assert plan(topology(), facts).refusals


def test_a_missing_output_is_a_fault_of_its_own():
    facts = {name: each for name, each in all_there().items() if name != "out"}
    with pytest.raises(TopicUnusable, match="output topic out is not there") as refused:
        check_before_start(topology(), facts, may_create=False)
    assert refused.value.cause == "output-missing"


def test_a_missing_source_is_refused_when_creation_is_not_allowed():
    with pytest.raises(TopicUnusable, match="source topic in is not there"):
        check_before_start(topology(), {}, may_create=False)


def test_topics_that_share_a_store_need_one_partition_count():
    app = Application("unused:1", consumer_group="p")
    for name, count in (("a", 2), ("b", 3)):
        app.dataframe(app.topic(name, config=TopicConfig(num_partitions=count))).apply(
            lambda value, state: value, stateful=True, store="shared"
        )
    refusal = plan(app.topology(), {}).refusals[0]
    assert "different partition counts" in refusal.sentence


def test_topology_groups_topics_by_shared_stores_and_hashes_the_code():
    app = Application("unused:1", consumer_group="p")
    for name, store in (("a", "one"), ("b", "one"), ("c", "two")):
        app.dataframe(app.topic(name)).apply(lambda value, state: value, stateful=True, store=store)
    described = app.topology()
    assert [(sub.inputs, sub.stores) for sub in described.subtopologies] == [
        (("a", "b"), ("one",)),
        (("c",), ("two",)),
    ]
    assert described.code_version == app.topology().code_version
    assert described.code_version != topology().code_version


@pytest.mark.parametrize(
    ("brokers", "copies", "insync", "why"),
    [
        (1, 1, 1, "no second copy is possible"),
        (2, 2, 1, "commits continue while one broker is away"),
        (3, 3, 2, "one broker may fail"),
        (9, 3, 2, "one broker may fail"),
    ],
)
def test_brokers_decide_the_copies_of_a_new_changelog_and_the_plan_says_why(brokers, copies, insync, why):
    decided = plan(topology(), {}, brokers)
    changelog = decided.stages[2].spec
    assert (changelog.replication, changelog.config["min.insync.replicas"]) == (copies, str(insync))
    assert why in str(decided.stages)
    assert [stage.spec.replication for stage in decided.stages[:2]] == [1, None], "others are the team's business"


def test_a_changelog_has_no_fewer_copies_than_its_inputs():
    app = Application("unused:1", consumer_group="p")
    app.dataframe(app.topic("in", config=TopicConfig(1, replication_factor=5))).apply(
        lambda value, state: value, stateful=True
    )
    changelog = plan(app.topology(), {}, 7).stages[1].spec
    assert (changelog.replication, changelog.config["min.insync.replicas"]) == (5, "3")


def test_every_entry_of_a_new_changelog_has_its_reason_in_the_explanation():
    text = str(plan(topology(), {}, 3).stages)
    assert all(f"{name}={value}: " in text for name, value in CHANGELOG_CONFIG.items())


def test_a_store_has_its_own_entries_and_keeps_the_others():
    options = {"changelog_config": {"balances": {"segment.ms": 60_000, "min.insync.replicas": "1"}}}
    changelog = plan(topology(**options), {}, 3).stages[2].spec
    assert dict(changelog.config) == {**CHANGELOG_CONFIG, "segment.ms": "60000", "min.insync.replicas": "1"}


def test_more_copies_than_there_are_can_not_be_waited_for():
    options = {"changelog_config": {"balances": {"min.insync.replicas": 3}}}
    (refusal,) = plan(topology(**options), {}, 2).refusals
    assert "min.insync.replicas=3, but would have 2 copies" in refusal.sentence
    (refusal,) = plan(topology(**options), all_there(), 3).refusals
    assert "but has 1 copies" in refusal.sentence


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"cleanup.policy": "delete"}, "cleanup.policy=delete, expected compact"),
        ({"cleanup.policy": "compact,delete"}, "any other policy deletes live keys"),
        ({"delete.retention.ms": 60_000}, "expected 3600000 or more"),
        ({"delete.retention.ms": "soon"}, "expected a whole number"),
        ({"min.compaction.lag.ms": 10**12}, "at most max.compaction.lag.ms"),
        ({"segment.ms": 1.5}, "text or a whole number"),
        ({"preallocate": True}, "text or a whole number"),
    ],
)
def test_configuration_that_endangers_state_is_refused_where_it_is_declared(entries, said):
    with pytest.raises(ChangelogConfigInvalid) as refused:
        topology(changelog_config={"balances": entries})
    assert said in refused.value.message
    assert refused.value.fields["store"] == "balances"


def test_configuration_of_a_store_that_is_not_there_is_refused():
    with pytest.raises(ApplicationInvalid, match="the store 'balance', which no step uses; the stores are balances"):
        topology(changelog_config={"balance": {}})
    with pytest.raises(ApplicationInvalid, match="use_changelog_topics is off"):
        topology(changelog_config={"balances": {}}, use_changelog_topics=False)
    with pytest.raises(ApplicationInvalid, match="mapping of stores to entries"):
        topology(changelog_config={"balances": "compact"})


def test_what_keeps_more_is_left_and_said():
    decided = plan(topology(), all_there(**{"delete.retention.ms": "999999999", "segment.ms": "1000"}))
    assert decided.stages == ()
    assert "delete.retention.ms of orders-balances-changelog is 999999999" in decided.kept[0]


def test_what_keeps_less_is_repaired():
    (stage,) = plan(topology(), all_there(**{"delete.retention.ms": "1000", "segment.ms": "604800000"})).stages
    assert dict(stage.expected) == {"delete.retention.ms": "86400000", "segment.ms": "21600000"}
    stages = plan(topology(), all_there(**{"delete.retention.ms": "1000"})).stages
    assert stages[0].sentence().startswith("set on changelog")


@pytest.mark.parametrize(
    ("copies", "seen", "mended"), [(3, "1", "2"), (3, "2", None), (3, "3", None), (1, "2", "1"), (2, "1", None)]
)
def test_an_adopted_changelog_waits_for_as_many_copies_as_its_own_number_allows(copies, seen, mended):
    facts = all_there()
    name = "orders-balances-changelog"
    facts[name] = TopicFacts(name, "id", 4, copies, {**CHANGELOG_CONFIG, "min.insync.replicas": seen})
    stages = plan(topology(), facts, 9).stages
    assert [dict(stage.expected) for stage in stages] == ([] if mended is None else [{"min.insync.replicas": mended}])


def test_the_longest_time_uncompacted_is_never_set_below_the_shortest_one_that_is_kept():
    ten_days = str(10 * 24 * 3_600_000)
    kept = {"min.compaction.lag.ms": ten_days}
    (stage,) = plan(topology(), all_there(**kept, **{"max.compaction.lag.ms": str(2**63 - 1)})).stages
    assert isinstance(stage, RepairConfig)
    assert dict(stage.expected) == {"max.compaction.lag.ms": ten_days}
    assert plan(topology(), all_there(**kept, **{"max.compaction.lag.ms": ten_days})).stages == ()


def test_a_missing_input_is_told_with_the_existing_topic_of_the_most_similar_name():
    app = Application("unused:1", consumer_group="p")
    app.dataframe(app.topic("order")).to_topic(app.topic("outs"))
    others = ("invoices", "order-changelog", "orders", "outs2")
    created, output = plan(app.topology(), {}, others=others).stages
    assert created.sentence() == (
        "create source topic order: 1 partition, replication the cluster's default, cluster defaults; it did not "
        "exist before: is orders meant, which exists?"
    )
    assert "exist" not in output.sentence(), "what a processor writes to is created as a matter of course"
    [alone, _] = plan(app.topology(), {}, others=("invoices",)).stages
    assert alone.sentence().endswith("; it did not exist before")


def test_a_worker_that_creates_an_input_says_so_loudly():
    cluster = InMemoryCluster()
    cluster.create_topic("orders")
    app = Application("unused:1", consumer_group="p", loglevel=None)
    app.dataframe(app.topic("order"))
    with structlog.testing.capture_logs() as told:
        cluster.run(app)
    [warning] = [each for each in told if "did not exist" in each["event"]]
    assert (warning["log_level"], warning["topic"], warning["is_meant_perhaps"]) == ("warning", "order", "orders")
    with structlog.testing.capture_logs() as again:
        cluster.run(app)
    assert not [each for each in again if "did not exist" in each["event"]]
