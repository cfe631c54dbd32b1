"""The check of topics reports its findings after each inspection of all topics.

Each inspection gets the facts that the inspection before has remembered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast import Application
from holdfast.infra.kafka.inspection.hanging_transactions import OpenTransaction
from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.processors.engine.changelog.config import CHANGELOG_CONFIG, MIN_INSYNC
from holdfast.processors.engine.state.databases.task_meta import RESEEDING
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.health.topics import (
    HELD_S,
    Finding,
    Look,
    WatchMemory,
    changed,
    decode_memory,
    encode_memory,
    held_too_long,
    judge,
    remember,
    suspects,
)

LOG, SOURCE, SINK, DEAD = "fleet-counts-changelog", "flights", "totals", "rejected"


def topology(name: str = "fleet", **options: Any) -> Topology:
    application = Application(consumer_group=name, **options)
    frame = application.dataframe(application.topic(SOURCE))
    frame = frame.apply(lambda value, state: value, stateful=True, store="counts")
    if options:
        frame.to_topic(application.topic(SINK))
    return application.topology()


FLEET = topology()


def facts(name: str, topic_id: str = "first", partitions: int = 2, **config: str) -> TopicFacts:
    settings = {**CHANGELOG_CONFIG, MIN_INSYNC: "1"} if name.endswith("changelog") else {}
    return TopicFacts(name, topic_id, partitions, 1, {**settings, **config})


def look(now: float = 1000.0, **other: Any) -> Look:
    found = Look(
        now=now,
        topics={SOURCE: facts(SOURCE), LOG: facts(LOG)},
        starts={SOURCE: {0: 0, 1: 0}},
        stable={LOG: {0: 10, 1: 10}},
        ends={LOG: {0: 10, 1: 10}, SOURCE: {0: 50, 1: 50}},
        committed={"fleet": {Partition(SOURCE, 0): 40, Partition(SOURCE, 1): 50}},
    )
    return replace(found, **other)


def topics(**changes: TopicFacts | None) -> dict[str, TopicFacts]:
    found = {"source": facts(SOURCE), "log": facts(LOG), **changes}
    return {each.name: each for each in found.values() if each is not None}


class Watch:
    """Inspects topics repeatedly. Each inspection gets the memory that the inspection before has returned."""

    def __init__(self, *watched: Topology) -> None:
        self.watched = watched or (FLEET,)
        self.memory = WatchMemory()
        self.news: tuple[Finding, ...] = ()

    def at(
        self,
        seen: Look,
        owners: dict[str, set[str]] | None = None,
        remade: dict[str, float] | None = None,
        transactions: dict[Partition, tuple[OpenTransaction, ...]] | None = None,
        busy: frozenset[str] = frozenset(),
    ) -> dict[str, Finding]:
        self.memory = decode_memory(encode_memory(self.memory))
        known = remember(self.watched, seen, self.memory, owners or {}, remade or {})
        findings = list(judge(self.watched, seen, known, transactions or {}, busy=busy))
        self.news = changed(findings, self.memory)
        told = {**self.memory.told, **{each.name: each.short for each in findings}}
        self.memory = WatchMemory(known, told)
        return {each.check: each for each in sorted(findings, key=lambda each: not each.passed)}

    def failing(self, seen: Look, **more: Any) -> dict[str, str]:
        return {name: each.text for name, each in self.at(seen, **more).items() if not each.passed}


def test_what_is_in_order_is_told_once() -> None:
    watch = Watch()
    assert watch.failing(look()) == {}
    assert len(watch.news) == 4
    watch.at(look(1030.0))
    assert watch.news == ()


@pytest.mark.parametrize("cursor", [None, "", "{", "[]", '{"topics": 3}', "\ud800"])
def test_a_cursor_that_cannot_be_read_is_as_none(cursor: str | None) -> None:
    assert decode_memory(cursor) == WatchMemory()


def test_a_changelog_that_is_not_compacted_any_more_is_told_with_its_remedy() -> None:
    altered = look(topics=topics(log=facts(LOG, **{"cleanup.policy": "delete"})))
    said = Watch().failing(altered)["config_matches_spec"]
    assert "cleanup.policy is delete, expected compact" in said
    assert "Kafka deletes state" in said
    assert "`holdfast apply provision fleet`" in said


def test_a_changelog_that_lost_records_is_told_with_their_number_until_it_is_another_topic() -> None:
    cut = {LOG: {0: 5_000, 1: 812}, SOURCE: {0: 0, 1: 0}}
    altered = topics(log=facts(LOG, **{"cleanup.policy": "compact,delete"}))
    watch = Watch()
    for seen in (
        look(starts=cut, topics=altered),
        look(1030.0, starts=cut),
    ):  # In the second inspection the configuration is repaired, but the records stay lost. So the check stays red.
        said = watch.failing(seen)["config_matches_spec"]
        assert "5,812 of its records are gone" in said
        assert f"{LOG}[0] begins at offset 5,000" in said
        assert "`holdfast apply backfill fleet --store counts --from local`" in said
        assert "`holdfast apply clear fleet --all --rewind earliest`" in said
    grown = look(1060.0, starts={LOG: {0: 5_001, 1: 812}, SOURCE: {0: 0, 1: 0}})
    watch.at(grown)
    assert watch.news == (), "numbers that grow are no news"
    again = topics(log=facts(LOG, "second"))
    assert watch.failing(look(1090.0, topics=again), remade={"fleet": 1080.0}) == {}


def test_a_changelog_that_is_too_wide_is_filled_again_unless_its_further_partitions_have_state() -> None:
    wide = topics(log=facts(LOG, partitions=3))
    ends = {LOG: {0: 10, 1: 10, 2: 0}, SOURCE: {0: 50, 1: 50}}
    said = Watch().failing(look(topics=wide, ends=ends))["partition_count"]
    assert f"Changelog {LOG} has 3 partitions, its source topic {SOURCE} has 2" in said
    assert said.index("--from local") < said.index("--rewind earliest")
    ends[LOG][2] = 7
    said = Watch().failing(look(topics=wide, ends=ends))["partition_count"]
    assert "keys and their state are in different partitions" in said
    assert "--from local" not in said


@pytest.mark.parametrize(("missing", "role"), [(SINK, "Output topic"), (DEAD, "Dead-letter topic")])
def test_a_topic_that_only_messages_are_written_to_is_told_when_it_is_gone(missing: str, role: str) -> None:
    watch = Watch(topology(dead_letter_topic=DEAD))
    there = {each: facts(each) for each in (SINK, DEAD)}
    assert watch.failing(look(topics={**topics(), **there})) == {}
    del there[missing]
    said = watch.failing(look(1030.0, topics={**topics(), **there}))["topic_exists"]
    assert f"{role} {missing} is missing" in said
    assert "`holdfast apply deploy fleet`" in said


def test_a_changelog_that_is_gone_is_told_and_its_return_too() -> None:
    watch = Watch()
    watch.at(look())
    said = watch.failing(look(1030.0, topics=topics(log=None)))
    assert "is missing" in said["config_matches_spec"]
    assert "holdfast apply backfill fleet --store counts --from local" in said["config_matches_spec"]
    assert watch.failing(look(1060.0)) == {}
    assert [each.check for each in watch.news] == ["config_matches_spec"]


def test_a_changelog_that_was_made_again_is_told_until_its_owners_say_that_it_is_theirs() -> None:
    watch = Watch()
    watch.at(look())
    again = topics(log=facts(LOG, "second"))
    assert suspects([FLEET], look(1030.0, topics=again), watch.memory) == ("fleet",)
    assert "deleted and created again" in watch.failing(look(1030.0, topics=again))["config_matches_spec"]
    assert watch.failing(look(1060.0, topics=again), owners={LOG: {"first"}})
    assert watch.failing(look(1090.0, topics=again), owners={LOG: {"second", RESEEDING}}) == {}
    assert suspects([FLEET], look(1120.0, topics=again), watch.memory) == ()


def test_a_changelog_that_was_made_again_before_the_first_look_is_told_by_its_owners() -> None:
    said = Watch().failing(look(topics=topics(log=facts(LOG, "second"))), owners={LOG: {"first"}})
    assert "state belongs to first" in said["config_matches_spec"]


def test_a_changelog_that_a_verb_made_anew_is_the_right_one() -> None:
    watch = Watch()
    watch.at(look())
    again = topics(log=facts(LOG, "second"))
    assert watch.failing(look(1030.0, topics=again), remade={"fleet": 900.0})
    assert watch.failing(look(1060.0, topics=again), remade={"fleet": 1050.0}) == {}


def hanging(**other: Any) -> OpenTransaction:
    given = {"partition": Partition(LOG, 1), "producer_id": 7, "producer_epoch": 0, "start_offset": 10, **other}
    return OpenTransaction(**{"since_write_s": 5000.0, **given})


HELD = {"stable": {LOG: {0: 10, 1: 10}}, "ends": {LOG: {0: 10, 1: 12}, SOURCE: {0: 50, 1: 50}}}


def test_a_transaction_counts_once_the_last_stable_offset_stood_for_too_long() -> None:
    watch = Watch()
    assert watch.failing(look(1000.0, **HELD)) == {}
    assert watch.failing(look(1000.0 + HELD_S - 1, **HELD)) == {}
    assert held_too_long(watch.memory.topics, 1000.0 + HELD_S) == {LOG: (1,)}
    found = {Partition(LOG, 1): (hanging(),)}
    said = watch.failing(look(1000.0 + HELD_S, **HELD), transactions=found)["no_hanging_transaction"]
    assert "stands at 10, below the end at 12" in said
    assert "A transaction hangs" in said
    assert said.endswith("`holdfast apply compact fleet`.")
    watch.at(look(1060.0, **HELD), transactions=found)
    assert watch.news == ()


def test_a_last_stable_offset_that_moves_is_held_by_nobody() -> None:
    watch = Watch()
    for step in range(10):
        moving = {"stable": {LOG: {0: step}}, "ends": {LOG: {0: step + 5}, SOURCE: {}}}
        assert watch.failing(look(1000.0 + 30 * step, **moving)) == {}


@pytest.mark.parametrize(
    ("transaction", "words"),
    [
        (None, "A transaction is open. Find its producer"),
        (hanging(since_write_s=100.0), "it may still end by its timeout"),
        (hanging(transactional_id="other", timeout_s=600.0, age_s=100.0), "after its timeout of 600 s"),
    ],
)
def test_what_holds_a_changelog_is_told_as_far_as_it_is_known(transaction: OpenTransaction | None, words: str) -> None:
    watch = Watch()
    watch.at(look(1000.0, **HELD))
    found = {} if transaction is None else {Partition(LOG, 1): (transaction,)}
    assert words in watch.failing(look(1100.0, **HELD), transactions=found)["no_hanging_transaction"]


def test_input_that_is_gone_unread_is_counted() -> None:
    said = Watch().failing(look(starts={SOURCE: {0: 45, 1: 50}}))["offsets_within_log"]
    assert (
        "begins at offset 45, but fleet has processed only up to 40: 5 records were deleted before they were read"
        in said
    )
    assert "`holdfast apply reposition fleet`" in said


def test_input_that_ends_before_what_was_processed_is_told() -> None:
    said = Watch().failing(look(ends={LOG: {0: 10, 1: 10}, SOURCE: {0: 3, 1: 50}}))["offsets_within_log"]
    assert "ends at offset 3, but fleet has processed 40" in said
    assert "`holdfast apply clear fleet --all --rewind earliest`" in said


def test_a_source_that_was_made_again_is_told_although_its_offsets_fit() -> None:
    watch = Watch()
    watch.at(look())
    again = topics(source=facts(SOURCE, "second"))
    assert "other records now" in watch.failing(look(1030.0, topics=again))["offsets_within_log"]
    unknown = watch.at(look(1060.0, topics=again, committed={}))
    assert "offsets_within_log" not in unknown
    assert watch.failing(look(1070.0, topics=again))
    assert watch.failing(look(1090.0, topics=again, committed={"fleet": {}})) == {}
    assert watch.failing(look(1120.0, topics=again)) == {}


def test_partitions_that_were_added_part_keys_from_their_state() -> None:
    said = Watch().failing(look(topics=topics(source=facts(SOURCE, partitions=3))))["partition_count"]
    assert "has 3 partitions, the state of store counts of fleet has 2" in said
    assert "`holdfast apply clear fleet --all --rewind earliest`" in said


def test_a_source_that_is_not_there_is_told_once() -> None:
    said = Watch().failing(look(topics=topics(source=None)))
    assert set(said) == {"offsets_within_log"}
    assert "is missing" in said["offsets_within_log"]


def test_nothing_is_said_of_topics_that_a_verb_works_on() -> None:
    watch = Watch()
    watch.at(look())
    gone = look(1030.0, topics=topics(log=None))
    assert watch.at(gone, busy=frozenset({"fleet"})) == {}
    assert watch.failing(replace(gone, now=1060.0))


def test_a_topic_that_two_processors_read_is_one_subject() -> None:
    other = topology("other")
    log = facts("other-counts-changelog")
    seen = look(
        topics={**topics(), log.name: log},
        starts={SOURCE: {0: 45, 1: 50}},
        committed={"fleet": {Partition(SOURCE, 0): 40}, "other": {Partition(SOURCE, 0): 50}},
    )
    watch = Watch(FLEET, other)
    watch.at(seen)
    (found,) = [each for each in watch.news if each.check == "offsets_within_log"]
    assert "fleet has processed" in found.text
    assert "other has" not in found.text
