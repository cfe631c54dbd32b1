"""Sources that are declared or used wrongly: a clear error, and nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Application, ApplicationInvalid, InMemoryCluster
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import ValueNotStorable
from holdfast.processors.engine.record_size import RecordTooLarge
from holdfast.processors.engine.record_times import RecordTimeRefused
from holdfast.processors.engine.runtime.idle import SourceFailed
from holdfast.processors.engine.sources import handover
from holdfast.processors.engine.sources.declaration import SourceInvalid
from holdfast.processors.engine.sources.handover import FlushTimeout, UnitTooLarge
from holdfast.processors.engine.sources.source import MessageRefused, SourceNotRunning, SourceWithoutState
from holdfast.processors.engine.sources.source_state import SourceStateKeyInvalid
from holdfast.processors.engine.state.methods import StateValueInvalid
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.sources import Source, StatefulSource


def application(**options: Any) -> Application:
    return Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **options)


class Quiet(Source):
    def run(self) -> None:
        """Does not produce any message."""


class Unnamed(Quiet):
    def __init__(self) -> None:
        self.url = "wss://quotes"


class Idle(Source):
    """A source without ``run``."""


class Awaited(Source):
    async def run(self) -> None:  # type: ignore[override]
        """An async `run`, which is a mistake: a call only makes a coroutine, and nothing runs."""


class Yielding(Source):
    def run(self) -> Any:
        yield 1


def twice() -> None:
    app = application()
    app.add_source(Quiet("one"))
    app.add_source(Quiet("one"))


def grouped() -> None:
    app = application()
    app.add_source(Quiet("one"), app.dataframe(app.topic("in")).group_by("k").topic)


def unlogged() -> None:
    app = application(use_changelog_topics=False)
    app.add_source(Quiet("a"))
    app.topology()


@pytest.mark.parametrize(
    ("declare", "kind", "said"),
    [
        (twice, SourceInvalid, "Application g has two sources of the name 'one'"),
        (grouped, SourceInvalid, "Source 'one' got g-k-repartition, a topic of `group_by`"),
        (lambda: application().add_source(Idle("idle")), SourceInvalid, "Source 'idle' has no `run`"),
        (lambda: application().add_source(Awaited("a")), SourceInvalid, "is async or has `yield`"),
        (lambda: application().add_source(Yielding("a")), SourceInvalid, "is async or has `yield`"),
        (lambda: application().add_source(Unnamed()), SourceInvalid, "Source Unnamed has no name"),
        (lambda: application().add_source(Quiet("a/b")), SourceInvalid, "A source has the name 'a/b'"),
        (lambda: application().add_source(Quiet), SourceInvalid, "of type type; expected an object of a subclass"),
        (lambda: application().add_source(Quiet("a"), "in"), StepInvalid, "`app.add_source` got 'in' of type str"),
        (lambda: application().add_source(Quiet("a", shutdown_timeout=-1)), SourceInvalid, "is -1; expected seconds"),
        (lambda: application().dataframe(), ApplicationInvalid, "got neither a topic nor a source"),
        (
            unlogged,
            ApplicationInvalid,
            "Store 'source-a' has source a: keeps no state, but use_changelog_topics is off",
        ),
    ],
)
def test_a_declaration_is_refused(declare: Callable[[], Any], kind: type[HoldfastError], said: str) -> None:
    with pytest.raises(kind) as refused:
        declare()
    assert said in refused.value.message
    assert refused.value.action


def test_a_store_of_a_source_is_of_no_step() -> None:
    app = application()
    app.dataframe(source=Quiet("a")).apply(lambda value, state: value, stateful=True, store=app.store("source-a"))
    with pytest.raises(
        StepInvalid, match="Store 'source-a' has the state of source 'a', and a step uses it"
    ) as refused:
        app.topology()
    assert "another name, for example `steps-of-a`; sources take the names `source-<" in refused.value.action
    app = application()
    app.dataframe(source=Quiet("a")).apply(lambda value, state: value, stateful=True, store=app.store("steps-of-a"))
    assert {store.name for store in app.topology().stores} == {"source-a", "steps-of-a"}


@pytest.mark.parametrize(
    "call",
    [
        lambda source: source.produce(b"1"),
        lambda source: source.flush(),
        lambda source: source.sleep(1),
        lambda source: source.state,
        lambda source: source.serialize("k", 1),
    ],
)
def test_a_source_that_does_not_run_produces_nothing(call: Callable[[Any], Any]) -> None:
    class Kept(StatefulSource):
        def run(self) -> None:
            """Does not produce any message."""

    source = Kept("kept")
    application().add_source(source)
    assert not source.running
    with pytest.raises(SourceNotRunning, match="of source 'kept' was used while the source does not run") as refused:
        call(source)
    assert "within `run`" in refused.value.action


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda source: source.produce({"a": 1}), MessageRefused, "`value` of `produce` is {'a': 1} of type dict"),
        (lambda source: source.produce(b"1", key=7), MessageRefused, "`key` of `produce` is 7 of type int"),
        (lambda source: source.produce(b"1", partition=1), MessageRefused, "expected None: the key decides"),
        (lambda source: source.produce(b"1", timestamp=1.5), MessageRefused, "expected milliseconds since 1970"),
        (lambda source: source.produce(b"x" * 2_000_000), RecordTooLarge, "A message of source 'one' has 2,000,000"),
        (lambda source: source.produce(b"1", timestamp=4_000_000_000_000), RecordTimeRefused, "ahead of this worker"),
        (lambda source: source.state.set(7, 1), SourceStateKeyInvalid, "is 7 of type int; expected a text."),
        (lambda source: source.state.get(b"a"), SourceStateKeyInvalid, "is b'a' of type bytes; expected a text."),
        (
            lambda source: source.state.set("__holdfast/x", 1),
            SourceStateKeyInvalid,
            "does not begin with '__holdfast/'",
        ),
        (lambda source: source.state.set("a", {1, 2}), ValueNotStorable, "for key 'a' of store 'source-one'"),
        (lambda source: source.state.set("a", "x" * 2_000_000), RecordTooLarge, "in store 'source-one' has 2,000,0"),
        (lambda source: source.state.set("a", 1, ttl=5), StateValueInvalid, "was set with `ttl`"),
        (lambda source: [source.produce(b"1", key="k") for _ in range(6)], UnitTooLarge, "has produced 5 messages"),
    ],
)
def test_a_wrong_call_stops_the_worker_and_sends_nothing_of_its_unit(
    call: Callable[[Any], Any], kind: type[HoldfastError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(StatefulSource):
        def run(self) -> None:
            self.produce(b"1", key="k")
            self.flush()
            self.state.set("lost", True)
            call(self)

    monkeypatch.setattr(handover, "UNIT_MAX", 5)
    app, cluster = application(), InMemoryCluster()
    app.dataframe(source=Wrong("one"))
    with pytest.raises(SourceFailed) as failed:
        cluster.run(app)
    assert type(failed.value.__cause__) is kind
    assert said in failed.value.message
    assert len(cluster.read("source__one")) == 1
    assert (b"one", "lost") not in cluster.state(app, "source-one")


def test_the_action_of_a_time_that_the_topic_refuses_works_for_a_source() -> None:
    class Ahead(Source):
        given: int | None = 4_000_000_000_000

        def run(self) -> None:
            self.produce(b"1", key="k", timestamp=self.given)

    def build() -> Application:
        app = application()
        app.dataframe(source=Ahead("ahead"))
        return app

    cluster = InMemoryCluster()
    with pytest.raises(SourceFailed) as failed:
        cluster.run(build())
    action = failed.value.action
    assert action.startswith("Pass another `timestamp` to `produce`, or leave it out for the present time, or raise ")
    assert "dead_letter_topic" not in action
    Ahead.given = None
    cluster.run(build())
    assert [record.value for _, record in cluster.read("source__ahead")] == [b"1"]


def test_a_source_without_state_is_told_the_class_that_has_it() -> None:
    class Plain(Source):
        def run(self) -> None:
            self.state.set("a", 1)

    app = application()
    app.dataframe(source=Plain("plain"))
    with pytest.raises(SourceFailed) as failed:
        InMemoryCluster().run(app)
    assert type(failed.value.__cause__) is SourceWithoutState
    assert "but Plain is a subclass of `Source`, which keeps no state" in failed.value.message
    assert failed.value.action.startswith("Write `class Plain(StatefulSource)`")


def test_a_source_without_state_may_have_an_attribute_of_this_name() -> None:
    class Own(Source):
        def run(self) -> None:
            self.state = [1]
            self.produce(b"1", key=str(self.state))

    app, cluster = application(), InMemoryCluster()
    app.dataframe(source=Own("own"))
    cluster.run(app)
    assert [record.key for _, record in cluster.read("source__own")] == [b"[1]"]
    with pytest.raises(AttributeError, match="'Own' object has no attribute 'stat'"):
        _ = Own("other").stat  # type: ignore[attr-defined]
    assert not hasattr(Own("other"), "stat")


@pytest.mark.parametrize("name", ["client", "state"])
def test_a_property_that_fails_is_told_by_its_own_error(name: str) -> None:
    def run(self: Any) -> None:
        getattr(self, name).read()

    pooled = type("Pooled", (Source,), {"_pool": None, name: property(lambda self: self._pool.connect()), "run": run})
    app = application()
    app.dataframe(source=pooled("pooled"))
    with pytest.raises(SourceFailed) as failed:
        InMemoryCluster().run(app)
    cause = failed.value.__cause__
    assert type(cause) is AttributeError
    assert (cause.name, cause.obj) == ("connect", None)
    assert "'NoneType' object has no attribute 'connect'" in failed.value.message


def _fails(*given: Any) -> None:
    raise OSError("no route to host")


@pytest.mark.parametrize("method", ["setup", "run", "cleanup", "on_client_connect_success"])
def test_the_error_names_the_method_that_failed(method: str) -> None:
    made = type("Made", (Quiet,), {} if method.startswith("on_") else {method: _fails})
    app = application()
    app.dataframe(source=made("made", **({method: _fails} if method.startswith("on_") else {})))
    with pytest.raises(SourceFailed) as failed:
        InMemoryCluster().run(app)
    assert failed.value.action.startswith(f"Correct its `{method}`, or the system that it reads.")


def test_a_flush_ends_by_its_timeout_and_the_messages_stay() -> None:
    app, cluster, seen = application(), InMemoryCluster(), []

    class Hasty(StatefulSource):
        def run(self) -> None:
            self.produce(b"1", key="k")
            try:
                self.flush(timeout=0.0)
            except FlushTimeout as over:
                seen.append(over)

    app.dataframe(source=Hasty("hasty"))
    cluster.run(app)
    assert seen[0].message.startswith("`flush` of source 'hasty' waited 0 s")
    assert len(cluster.read("source__hasty")) == 1


def test_a_source_that_is_added_later_names_what_lets_its_store_begin() -> None:
    """If a source is added later, the error names the action with which its new store can start empty.

    The state of a source does not follow from the input, so a backfill could not build it.
    """
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    cluster.produce("in", b"1", b"k")
    app = application()
    app.dataframe(app.topic("in"))
    cluster.run(app)
    added = application()
    added.add_source(Quiet("late"), added.topic("in"))
    added.dataframe(added.topic("in")).to_topic(added.topic("out"))
    with pytest.raises(HoldfastError, match="store source-late holds nothing of it") as refused:
        cluster.run(added)
    assert "`holdfast apply deploy PROCESSOR` lets the store begin empty" in refused.value.action
    assert "backfill" not in refused.value.action
    assert "cluster.clear_state(app, rewind='earliest')" in refused.value.action
    cluster.clear_state(added, rewind="earliest")
    cluster.run(added)
    assert len(list(cluster.read("out"))) == 1
