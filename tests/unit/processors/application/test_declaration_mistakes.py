"""Mistakes in a declaration are refused at their line. The error has the value, the expected form, and the edit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.store_options import StoreInvalid
from holdfast.processors.engine.steps.topic import Topic


def made(**options: Any) -> tuple[Application, Any]:
    app = Application("in-memory", consumer_group="g", loglevel=None, **options)
    return app, app.dataframe(app.topic("in"))


def count(value: Any, state: Any) -> int:
    state.set("n", 1)
    return 1


async def asking(value: Any) -> Any:
    """A coroutine function. A step would call it without `await`."""


async def merging(left: Any, right: Any) -> Any:
    """An async merge function. A join would call it without `await`."""


class Late:
    def on_message(self, value: Any) -> None:
        """The parameter `context` is missing."""


class AsyncMessage:
    async def on_message(self, value: Any, context: Any) -> None:
        """An async callback. The step would call it without `await`."""


class LateTimer:
    def on_message(self, value: Any, context: Any) -> None:
        """A correct callback."""

    def on_timer(self, name: str) -> None:
        """The parameters `time` and `context` are missing."""


class NeedsLimit:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def on_message(self, value: Any, context: Any) -> None:
        """A correct callback."""


MISTAKES: dict[str, tuple[Callable[[Application, Any], Any], str]] = {
    "a text for a stream": (
        lambda app, sdf: app.dataframe("orders"),
        "`app.dataframe` got 'orders' of type str; expected a topic of `app.topic`. What to do: Write "
        "`app.dataframe(app.topic('orders'))`.",
    ),
    "a text for a table": (lambda app, sdf: app.table("orders"), "Write `app.table(app.topic('orders'))`."),
    "a text for an output": (lambda app, sdf: sdf.to_topic("out"), "Write `to_topic(app.topic('out'))`."),
    "a number for a topic's name": (lambda app, sdf: app.topic(5), "The topic name is 5 of type int; expected a text."),
    "a number for a window's name": (
        lambda app, sdf: sdf.tumbling_window(1000, name=5).count().final(),
        "The name of a step's store is 5 of type int; expected a text.",
    ),
    "stateful forgotten": (
        lambda app, sdf: sdf.apply(count),
        "`apply` got the function count(value: 'Any', state: 'Any') -> 'int', which can't be called with (value). What "
        "to do: Write `apply(count, stateful=True)`, or give the function these arguments.",
    ),
    "state forgotten": (
        lambda app, sdf: sdf.filter(lambda value: True, stateful=True),
        "`filter` with `stateful=True` got the function <lambda>(value), which can't be called with (value, state).",
    ),
    "metadata forgotten": (
        lambda app, sdf: sdf.update(lambda value, key, timestamp, headers: None),
        "Write `update(<lambda>, metadata=True)`",
    ),
    "both forgotten": (
        lambda app, sdf: sdf.apply(lambda value, key, timestamp, headers, state: None),
        "Write `apply(<lambda>, stateful=True, metadata=True)`",
    ),
    "an async function": (
        lambda app, sdf: sdf.filter(asking),
        "`filter` got the async function asking(value: 'Any') -> 'Any', which it does not await. What to do: Write "
        "`def` in place of `async def`; or await it for each message by `sdf.apply_async(function)`.",
    ),
    "an async rule of a join": (
        lambda app, sdf: sdf.join_table(app.table(app.topic("t")), on_merge=merging),
        "`on_merge` got the async function merging(",
    ),
    "a rule of a join for one side": (
        lambda app, sdf: sdf.join_asof(app.dataframe(app.topic("t")), on_merge=lambda left: left),
        "`on_merge` got the function <lambda>(left), which can't be called with (left, right).",
    ),
    "an async key of a global table": (
        lambda app, sdf: sdf.join_table(app.global_table(app.topic("t")), on=asking),
        "`on` of `join_table` got the async function",
    ),
    "a call for a function": (
        lambda app, sdf: sdf.apply(3),
        "`apply` got 3 of type int; expected a function of (value). What to do: Pass a function, without calling it.",
    ),
    "a key of two": (lambda app, sdf: sdf.to_topic(app.topic("o"), key=lambda a, b: a), "`key` of `to_topic` got"),
    "a time of the value": (
        lambda app, sdf: sdf.set_timestamp(lambda value: 1),
        "which can't be called with (value, key, timestamp, headers)",
    ),
    "an extractor of the value": (
        lambda app, sdf: app.topic("t", timestamp_extractor=lambda value: 1),
        "`timestamp_extractor` of topic t is <lambda>(value), which can't be called with (value, headers, timestamp, "
        "timestamp_type).",
    ),
    "on_late of the value": (
        lambda app, sdf: sdf.tumbling_window(1000, on_late=lambda value: True).count(),
        "`on_late` is <lambda>(value), which can't be called with (value, key, timestamp, late_by_ms,",
    ),
    "a trigger of the value": (
        lambda app, sdf: sdf.tumbling_window(1000, after_update=lambda value: True).count(),
        "`after_update` is <lambda>(value)",
    ),
    "on_message of the value": (
        lambda app, sdf: sdf.process(Late),
        "`process` got Late, whose method is on_message(self, value: 'Any') -> 'None'. What to do: Write `def "
        "on_message(self, value, context)`.",
    ),
    "on_message that is async": (
        lambda app, sdf: sdf.process(AsyncMessage),
        "`process` got AsyncMessage, whose method on_message is async; it is not awaited.",
    ),
    "on_timer of the name": (
        lambda app, sdf: sdf.process(LateTimer),
        "Write `def on_timer(self, name, time, context)`",
    ),
    "a class with arguments": (
        lambda app, sdf: sdf.process(NeedsLimit),
        "`process` got NeedsLimit(limit: 'int') -> 'None', which can't be called without arguments.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_where_it_is_written(mistake: str) -> None:
    declare, says = MISTAKES[mistake]
    app, sdf = made()
    with pytest.raises(HoldfastError) as refused:
        declare(app, sdf)
    assert says in str(refused.value)
    assert refused.value.action


def test_functions_that_can_be_called_are_taken() -> None:
    """Functions whose signature Python cannot read are accepted. So are wrappers that accept any arguments."""

    def timed(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def wrapper(value: Any) -> Any:
            return func(value, {})

        return wrapper

    class Callable_:
        def __call__(self, value: Any, state: Any) -> Any:
            return value

    _, sdf = made()
    for func in (str, len, print, dict, timed(count), functools.partial(count, state={}), lambda *all_: 1):
        sdf = sdf.apply(func)
    for func in (count, Callable_(), lambda value, state, more=1: 1, lambda *all_: 1):
        sdf = sdf.apply(func, stateful=True)
    sdf.apply(lambda value, key, timestamp, headers, state: 1, stateful=True, metadata=True)
    sdf.process(functools.partial(NeedsLimit, 3))
    sdf.process(lambda: NeedsLimit(3))


def test_a_second_stream_or_table_of_a_topic_is_told_by_the_first() -> None:
    app = Application("in-memory", consumer_group="g", loglevel=None)
    app.dataframe(app.topic("in"))
    app.table(app.topic("rows"))
    for declare in (app.dataframe, app.table):
        with pytest.raises(HoldfastError, match="in already has a stream") as stream:
            declare(app.topic("in"))
        with pytest.raises(HoldfastError, match="rows already has a table") as table:
            declare(app.topic("rows"))
        assert "`app.dataframe(topic)`" in stream.value.action
        assert "`sdf.to_table()`" in stream.value.action
        assert "`app.table(topic)`" in table.value.action
        assert "`table.to_stream()`" in table.value.action


def test_two_equal_joins_are_told_the_argument_of_a_join() -> None:
    app, stream = made()
    right = app.dataframe(app.topic("right"))
    for _ in range(2):
        stream.join_interval(right)
    with pytest.raises(HoldfastError, match="used by 2 steps with timers") as refused:
        app.topology()
    assert "`join_interval(..., name='near')`" in refused.value.action


def test_late_messages_for_nowhere_are_refused_before_the_start() -> None:
    def late(**options: Any) -> Application:
        app, sdf = made(**options)
        sdf.tumbling_window(1000, on_late="dead-letter").count().final().to_topic(app.topic("out"))
        return app

    cluster = InMemoryCluster()
    cluster.create_topic("in")
    with pytest.raises(HoldfastError, match="the application has no dead_letter_topic") as refused:
        cluster.run(late())
    assert 'Write `Application(..., dead_letter_topic="late")`' in refused.value.action
    late(dead_letter_topic="late").topology()
    late(on_processing_error=lambda error, message, logger: True).topology()


@pytest.mark.parametrize(("value", "key", "says"), [({"x": 1}, b"k", "value"), (b"{}", "alice", "key")])
def test_a_test_that_sends_no_bytes_is_told_which(value: Any, key: Any, says: str) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    with pytest.raises(HoldfastError, match=f"`produce` got a {says} of type .*expected bytes or None"):
        cluster.produce("in", value, key)


def test_a_timer_without_its_method_says_which() -> None:
    class Forgets:
        def on_message(self, value: Any, context: Any) -> None:
            context.set_timer("t", 5)

    app, sdf = made(auto_offset_reset="earliest")
    sdf.process(Forgets)
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    cluster.produce("in", b"1", b"k")
    with pytest.raises(HoldfastError, match="the processor has no method `on_timer`") as refused:
        cluster.run(app)
    assert "def on_timer(self, name, time, context)" in refused.value.action


def test_a_store_of_another_application_is_refused() -> None:
    """A store of another application is refused. Otherwise its TTL and the model of its values would be ignored."""
    app, other = Application(consumer_group="orders"), Application(consumer_group="refunds")
    foreign = other.store("seen", ttl=5000)
    frame = app.dataframe(app.topic("in"))
    with pytest.raises(StoreInvalid, match="Store 'seen' was declared with `app.store` of another application"):
        frame.apply(lambda value, state: value, stateful=True, store=foreign)
    own = app.store("seen", ttl=5000)
    frame.apply(lambda value, state: value, stateful=True, store=own)
    assert [type(store.name) for store in app.topology().stores] == [str]


def test_an_output_topic_of_another_processor_is_refused() -> None:
    app, other = Application(consumer_group="orders"), Application(consumer_group="refunds")
    frame = app.dataframe(app.topic("in"))
    with pytest.raises(StepInvalid, match="got topic out of application refunds; the stream is of application orders"):
        frame.to_topic(other.topic("out"))
    frame.to_topic(app.topic("out"))
    frame.to_topic(Topic("audit"))
    other.dataframe(app.topic("in"))  # two applications may read one topic
