"""Which processors may not run together, because their names, topics or changelogs conflict."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Application
from holdfast.infra.settings import Settings
from holdfast.processors.application.broken_definition import BrokenDefinition
from holdfast.processors.application.name_conflicts import name_conflicts
from holdfast.processors.application.registration import (
    ProcessorDefinition,
    ProcessorUnknown,
    find_processor,
    load_processors,
)
from holdfast.processors.engine.changelog.names import IllegalName
from holdfast.processors.engine.topology import Topology


def described(name: str, *stores: str, source: str = "in", sink: str = "out", **options: str) -> Topology:
    app = Application("unused:1", consumer_group=name, **options)  # type: ignore[arg-type]
    frame = app.dataframe(app.topic(source))
    for store in stores:
        frame = frame.apply(lambda value, state: value, stateful=True, store=store)
    frame.to_topic(app.topic(sink))
    return app.topology()


def test_processors_that_share_inputs_and_outputs_are_fine() -> None:
    assert name_conflicts(described("a", "s"), [described("b", "s"), described("c", "s")]) == ()


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (described("a"), described("a"), "Two definitions are named a"),
        (described("a-b", "s"), described("a_b", "s"), "have the same name in Dagster"),
        (described("a", "b-c"), described("a-b", "c"), "Store b-c of a and store c of a-b have one changelog"),
        (described("a", sink="b-s-changelog"), described("b", "s"), "Processor a writes to b-s-changelog"),
        (described("b", "s"), described("a", sink="b-s-changelog"), "Processor a writes to b-s-changelog"),
        (
            described("a", dead_letter_topic="b-s-changelog"),
            described("b", "s"),
            "Processor a writes to b-s-changelog, the changelog of store s of b",
        ),
        (described("a", sink="x.y"), described("b", sink="x_y"), "Topics x.y and x_y differ in dots"),
    ],
)
def test_two_processors_in_each_others_way_are_told(one: Topology, other: Topology, said: str) -> None:
    (conflict,) = name_conflicts(one, [other])
    assert said in conflict.sentence
    assert conflict.action


def test_reading_anothers_changelog_is_fine() -> None:
    assert name_conflicts(described("a", source="b-s-changelog"), [described("b", "s")]) == ()


@pytest.mark.parametrize(
    ("alone", "said"),
    [
        (described("a", "s", sink="a-s-changelog"), "it is the changelog of its store s"),
        (described("a", "s", source="a-s-changelog"), "it is the changelog of its store s"),
        (described("a", "x.y", "x_y"), "differ in dots and underscores only"),
        (described("a", "s", "s_history"), "Stores s and s_history of a both have a table holdfast.a.s_history"),
        (described("a", "s_quarantine", "s"), "Stores s_quarantine and s of a both have a table holdfast.a.s_quar"),
        (described("a", "_snapshots"), "the warehouse uses this name for the table of snapshots"),
    ],
)
def test_a_processor_in_its_own_way_is_told(alone: Topology, said: str) -> None:
    assert said in name_conflicts(alone)[0].sentence


@pytest.mark.parametrize("name", ["", "with space", "schön", "..", "n" * 250])
def test_names_that_kafka_refuses_are_refused_where_they_are_given(name: str) -> None:
    with pytest.raises(IllegalName, match="can't be used in Kafka"):
        Application("unused:1", consumer_group=name)


def test_a_store_whose_changelog_has_too_long_a_name_is_refused() -> None:
    with pytest.raises(IllegalName, match="changelog name"):
        described("p" * 120, "s" * 130)


DEFINITION = """
from holdfast import Application
application = Application("unused:1", consumer_group={name!r})
application.dataframe(application.topic("in")).apply(lambda value, state: value, stateful=True, store={store!r})
"""


def test_of_two_definitions_that_conflict_the_later_one_is_broken_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for module, name, store in (("names_one", "a", "b-c"), ("names_two", "a-b", "c"), ("names_three", "z", "c")):
        (tmp_path / f"{module}.py").write_text(DEFINITION.format(name=name, store=store))
    (tmp_path / "names_four.py").write_text("import nothing_of_this_name\n")
    targets = tuple(f"names_{number}:application" for number in ("one", "two", "three", "four", "one"))
    settings = Settings(home=tmp_path, processors=targets)
    one, two, three, four, again = load_processors(settings)
    assert isinstance(one, ProcessorDefinition)
    assert isinstance(three, ProcessorDefinition)
    assert isinstance(two, BrokenDefinition)
    assert "one changelog, a-b-c-changelog" in two.error
    assert isinstance(four, BrokenDefinition)
    assert "nothing_of_this_name" in four.error
    assert isinstance(again, BrokenDefinition)
    assert "Two definitions are named a" in again.error
    assert find_processor(settings, "z").topology.processor == "z"
    with pytest.raises(ProcessorUnknown) as unknown:
        find_processor(settings, "a-b")
    assert "names_two:application can't be used" in unknown.value.message
    assert "names_four:application can't be imported: " in unknown.value.message
    assert "line 1: ModuleNotFoundError" in unknown.value.message
