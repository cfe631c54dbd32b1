"""Wrong declarations of schedules are refused at once, and the error shows the correct line of code.

Correct declarations become a part of the processor's topology.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, ApplicationInvalid
from holdfast.processors.engine.schedules.times import ScheduleInvalid
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.topology import SCHEDULES
from holdfast.processors.lifecycle.plans.store_words import times_of

MINUTE = timedelta(minutes=1)


def nothing(slot: Any) -> None:
    """A schedule's function that does nothing."""


def made(**options: Any) -> Application:
    app = Application("in-memory", consumer_group="shop", loglevel=None, **options)
    app.dataframe(app.topic("orders")).apply(lambda value, state: value, stateful=True, store="carts")
    return app


def generator(slot: Any) -> Any:
    yield slot


async def awaited(slot: Any) -> None:
    """A coroutine function. A schedule would call it without `await`."""


def test_a_schedule_is_a_part_of_the_topology() -> None:
    app, plain = made(), made()
    app.every(MINUTE, to=app.topic("reports"))(nothing)
    app.cron("0 3 * * *", timezone="Europe/Berlin", name="nightly", per="task", missed="all")(nothing)
    topology = app.topology()
    [_, store] = topology.stores
    assert (store.name, store.kind, store.inputs) == ("orders-schedules", SCHEDULES, ("orders",))
    assert store.columns == (
        "schedule nothing: every 60000 ms, once for the processor; the last of missed slots fires",
        "schedule nightly: cron 0 3 * * * (Europe/Berlin), once for each task; missed slots fire",
    )
    assert times_of(topology.stores) == (
        "store `orders-schedules` has schedule nothing: every 1 min, once for the processor; the last of missed slots "
        "fires; schedule nightly: cron 0 3 * * * (Europe/Berlin), once for each task; missed slots fire",
    )
    assert [spec.name for spec in topology.outputs] == ["reports"]
    assert topology.changelog_of("orders-schedules") is not None
    assert [sub.stores for sub in topology.subtopologies] == [("carts", "orders-schedules")]
    assert topology.code_version != plain.topology().code_version


def test_another_time_function_or_policy_is_another_version() -> None:
    def version(declare: Callable[[Application], Any]) -> str:
        app = made()
        declare(app)
        return app.topology().code_version

    declared: list[Callable[[Application], Any]] = [
        lambda app: app.every(MINUTE)(nothing),
        lambda app: app.every(2 * MINUTE)(nothing),
        lambda app: app.every(MINUTE, per="task")(nothing),
        lambda app: app.every(MINUTE, missed="none")(nothing),
        lambda app: app.every(MINUTE, name="other")(nothing),
        lambda app: app.every(MINUTE, name="nothing")(lambda slot: slot.state.set("n", 1)),
        lambda app: app.every(MINUTE, to=app.topic("out"))(nothing),
        lambda app: app.cron("* * * * *")(nothing),
    ]
    assert len({version(each) for each in declared}) == len(declared)
    assert version(declared[0]) == version(declared[0])


@pytest.mark.parametrize(
    ("declare", "error", "says"),
    [
        (lambda app: [app.every(MINUTE)(nothing), app.cron("* * * * *")(nothing)], ScheduleInvalid, "two schedules"),
        (lambda app: app.every(MINUTE, per="key")(nothing), ScheduleInvalid, "one of processor, task"),
        (lambda app: app.every(MINUTE, missed="some")(nothing), ScheduleInvalid, "one of once, all, none"),
        (lambda app: app.every(MINUTE, name="a b")(nothing), ScheduleInvalid, "'a b'"),
        (lambda app: app.every(MINUTE, name="")(nothing), ScheduleInvalid, "''"),
        (lambda app: app.every(MINUTE)(lambda slot: None), ScheduleInvalid, "<lambda>"),
        (lambda app: app.every(MINUTE, name="x")(lambda: None), StepInvalid, "slot"),
        (lambda app: app.every(MINUTE)(5), ScheduleInvalid, "None"),
        (lambda app: app.every(MINUTE, name="x")(5), StepInvalid, "expected a function"),
        (lambda app: app.every(MINUTE)(awaited), StepInvalid, "async"),
        (lambda app: app.every(MINUTE)(generator), ScheduleInvalid, "generator"),
        (lambda app: app.every(MINUTE, to="out")(nothing), StepInvalid, "to="),
        (lambda app: app.every(MINUTE, to=[app.topic("out"), 5])(nothing), StepInvalid, "to="),
        (lambda app: app.every(MINUTE, stream="orders")(nothing), ScheduleInvalid, "expected a stream"),
        (lambda app: app.every(MINUTE, to=other().topic("out"))(nothing), StepInvalid, "application other"),
        (lambda app: app.every(MINUTE, stream=other().dataframe(other().topic("x")))(nothing), ScheduleInvalid, "str"),
    ],
)
def test_a_schedule_that_is_declared_wrong_is_refused(
    declare: Callable[[Application], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as refused:
        declare(made())
    assert getattr(refused.value, "action", "").endswith(".")


def other() -> Application:
    return Application("in-memory", consumer_group="other", loglevel=None)


def test_streams_that_share_no_task_ask_for_one_of_them() -> None:
    app = made()
    flights = app.dataframe(app.topic("flights"))
    app.every(MINUTE)(nothing)
    with pytest.raises(ScheduleInvalid, match="tasks of orders or of flights") as refused:
        app.topology()
    assert "stream=sdf" in refused.value.action
    app = made()
    flights = app.dataframe(app.topic("flights"))
    app.every(MINUTE, stream=flights)(nothing)
    assert [sub.stores for sub in app.topology().subtopologies] == [("carts",), ("flights-schedules",)]


def test_a_schedule_runs_in_tasks_behind_group_by() -> None:
    app = made()
    grouped = app.frames["orders"].group_by("carrier")
    grouped.apply(lambda value, state: value, stateful=True)
    app.every(MINUTE, stream=grouped)(nothing)
    assert [sub.stores for sub in app.topology().subtopologies] == [
        ("carts",),
        ("orders-by-carrier", "orders-by-carrier-schedules"),
    ]


def test_the_store_of_schedules_is_of_no_step_and_not_declared() -> None:
    app = made()
    app.frames["orders"].apply(lambda value, state: value, stateful=True, store="orders-schedules")
    app.every(MINUTE)(nothing)
    with pytest.raises(StepInvalid, match="orders-schedules"):
        app.topology()
    app = made()
    app.store("orders-schedules", ttl=1000)
    app.every(MINUTE)(nothing)
    with pytest.raises(ApplicationInvalid, match="orders-schedules"):
        app.topology()


def test_the_store_keeps_its_former_name() -> None:
    app = made(renamed_stores={"orders-schedules": "old-schedules"})
    app.every(MINUTE)(nothing)
    assert "old-schedules" in [store.name for store in app.topology().stores]


def test_a_schedule_needs_changelogs_and_an_input() -> None:
    app = made(use_changelog_topics=False)
    app.every(MINUTE)(nothing)
    with pytest.raises(ApplicationInvalid, match="schedule nothing: every 60000 ms"):
        app.topology()
    app = made(use_changelog_topics=False, processing_guarantee="at-least-once")
    app.every(MINUTE)(nothing)
    assert app.topology().changelogs == ()
    app = Application("in-memory", consumer_group="shop", loglevel=None)
    app.every(MINUTE)(nothing)
    assert app.topology().stores == ()


def test_a_shadow_of_another_store_has_no_schedules() -> None:
    app = made()
    app.every(MINUTE)(nothing)
    shadow = app.shadow("carts").topology()
    assert [store.name for store in shadow.stores] == ["carts"]
