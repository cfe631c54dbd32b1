"""The provisioning decision, as a table of facts and what follows."""

import pytest

from infra.kafka.errors import TopicUnusable
from infra.kafka.records import TopicFacts
from processors import Application, TopicConfig
from processors.lifecycle.provision import CreateTopic, RepairConfig, check_before_start, explain, plan
from processors.topology import CHANGELOG_CONFIG


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
    assert decided.stages == ()
    assert decided.refusals == ()
    assert explain(decided) == "nothing to do"


def test_an_existing_source_decides_the_changelogs_count():
    app = Application("unused:1", consumer_group="p")
    app.dataframe(app.topic("in")).apply(lambda value, state: value, stateful=True)
    stages = plan(app.topology(), {"in": there("in", 7)}).stages
    assert [stage.spec.partitions for stage in stages] == [7]


def test_drift_is_repaired_by_plan_and_refused_at_start():
    facts = all_there(**{"cleanup.policy": "delete"})
    decided = plan(topology(), facts)
    assert decided.stages == (
        RepairConfig("orders-balances-changelog", {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}),
    )
    with pytest.raises(TopicUnusable, match="cleanup.policy=delete, expected compact"):
        check_before_start(topology(), facts, may_create=True)


def test_a_wrong_partition_count_is_refused_with_the_way_out():
    facts = all_there() | {"orders-balances-changelog": there("orders-balances-changelog", 3)}
    with pytest.raises(TopicUnusable, match="has 3 partitions, its store's inputs have 4"):
        check_before_start(topology(), facts, may_create=True)
    assert "REFUSED" in explain(plan(topology(), facts))


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
