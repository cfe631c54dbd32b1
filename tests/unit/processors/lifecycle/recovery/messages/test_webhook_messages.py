"""The choice of webhook messages, their order, repetition and end. Tests only decisions, with a test clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.infra.database.records import Incident
from holdfast.infra.webhook import Answer
from holdfast.processors.lifecycle.recovery.messages import webhook_messages as told
from holdfast.processors.lifecycle.recovery.messages.webhook_messages import Cursor, Notification, Outbox

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
WELL, AWAY, WRONG = Answer(200, "it answered 200"), Answer(None, "it can't be reached"), Answer(400, "it answered 400")


def unkept(_: Outbox) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def incident(number: int = 1, **changed: object) -> Incident:
    facts: dict[str, object] = {
        "id": number,
        "processor": "fleet",
        "kind": "dead",
        "detail": {"0": "No process runs."},
        "opened_at": NOW,
        "claimed_by": None,
        "claimed_at": None,
        "attempts": 0,
        "closed_at": None,
        "outcome": None,
        "reason": "",
        "timeline": (),
    }
    return Incident(**(facts | changed))  # type: ignore[arg-type]


def failed(number: int = 1) -> Incident:
    closed = NOW + timedelta(seconds=30)
    return incident(number, closed_at=closed, outcome="failed", reason="attempt 3 of 3 failed", attempts=3)


def messages(count: int) -> list[Notification]:
    return [told.of_incident(incident(number))[0] for number in range(1, count + 1)]


def test_an_incident_is_told_when_it_opens_and_when_it_ends() -> None:
    (opened,) = told.of_incident(incident())
    assert (opened.event, opened.processor, opened.text) == ("incident.opened", "fleet", "No process runs.")
    again, ended = told.of_incident(failed())
    assert again.id == opened.id
    assert ended.event == "incident.failed"
    assert "attempt 3 of 3 failed" in ended.text


def test_an_incident_that_fails_again_is_told_again() -> None:
    later = failed()
    first, second = (
        told.of_incident(incident(closed_at=moment, outcome="failed"))[1].id for moment in (later.closed_at, NOW)
    )
    assert first != second


def test_each_message_is_accepted_once() -> None:
    clock, sent = Clock(), []
    outbox = Outbox()
    for _ in range(3):
        pending = told.waiting(outbox, messages(2), clock())
        outbox = told.deliver(outbox, pending, lambda one: sent.append(one.id) or WELL, clock, keep=unkept).outbox
    assert sent == ["incident-1-opened", "incident-2-opened"]


def test_a_webhook_that_is_away_is_tried_with_one_message_after_longer_and_longer_pauses() -> None:
    clock, outbox, pauses, tries = Clock(), Outbox(), [], 0
    for _ in range(9):
        sending = told.deliver(outbox, messages(5), lambda _: AWAY, clock, keep=unkept)
        assert sending.outbox.failures == tries + 1
        tries, outbox = tries + 1, sending.outbox
        assert outbox.not_before is not None
        pauses.append((outbox.not_before - clock.now).total_seconds())
        early = told.deliver(outbox, messages(5), lambda _: pytest.fail("it was too early"), clock, keep=unkept)
        assert early.outbox == outbox
        clock.now = outbox.not_before
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    well = told.deliver(outbox, messages(5), lambda _: WELL, clock, keep=unkept)
    assert len(well.accepted) == 5
    assert (well.outbox.failures, well.outbox.not_before) == (0, None)


def test_after_a_delivery_that_dies_at_any_message_each_message_was_sent_once() -> None:
    """The sender dies before any of the messages. The next tick still sends each message once.

    This tick knows only the state that the last call of ``keep`` has stored.
    """
    for dies_before in range(5):
        clock, kept, sent = Clock(), [Outbox()], []

        def send(one: Notification, dies_before: int = dies_before, sent: list[str] = sent) -> Answer:
            if len(sent) == dies_before and not sent.count("died"):
                sent.append("died")
                raise KeyboardInterrupt
            sent.append(one.id)
            return WELL

        with pytest.raises(KeyboardInterrupt):
            told.deliver(kept[-1], messages(5), send, clock, keep=kept.append)
        pending = told.waiting(kept[-1], messages(5), clock())
        told.deliver(kept[-1], pending, send, clock, keep=kept.append)
        sent.remove("died")
        assert sent == [each.id for each in messages(5)]


def test_a_message_that_cannot_be_sent_holds_up_no_other() -> None:
    broken = Answer(None, "the message can't be written as JSON", unsendable=True)
    sending = told.deliver(
        Outbox(), messages(3), lambda one: broken if one.incident == 1 else WELL, Clock(), keep=unkept
    )
    assert sending.accepted == ("incident-2-opened", "incident-3-opened")


def test_a_pause_that_the_webhook_asks_for_is_kept() -> None:
    clock = Clock()
    sending = told.deliver(Outbox(), messages(1), lambda _: Answer(429, "busy", 300.0), clock, keep=unkept)
    assert sending.outbox.not_before == NOW + timedelta(seconds=300)


def test_a_message_that_is_wrong_holds_up_no_other_and_is_given_up() -> None:
    clock, outbox, given_up = Clock(), Outbox(), []
    for _ in range(told.REFUSALS_MAX):
        pending = told.waiting(outbox, messages(3), clock())
        sending = told.deliver(outbox, pending, lambda one: WRONG if one.incident == 1 else WELL, clock, keep=unkept)
        outbox = sending.outbox
        given_up += sending.given_up
    assert given_up == ["incident-1-opened"]
    assert told.waiting(outbox, messages(3), clock()) == ()


def test_a_slow_webhook_ends_the_sending_and_the_rest_comes_next_time() -> None:
    clock = Clock()

    def slowly(_: Notification) -> Answer:
        clock.now += timedelta(seconds=8)
        return WELL

    sending = told.deliver(Outbox(), messages(9), slowly, clock, keep=unkept)
    assert len(sending.accepted) == 3
    assert len(told.waiting(sending.outbox, messages(9), clock())) == 6


def test_what_is_a_day_old_is_no_news() -> None:
    later = NOW + told.NEWS_FOR + timedelta(seconds=1)
    assert told.waiting(Outbox(), messages(1), later) == ()


def test_what_was_told_is_remembered_as_text_and_forgotten_with_its_incident() -> None:
    clock = Clock()
    sending = told.deliver(Outbox(), messages(3), lambda one: WRONG if one.incident == 2 else WELL, clock, keep=unkept)
    outbox = sending.outbox
    cursor = Cursor(outbox, 7)
    assert told.decoded(told.encoded(cursor)) == cursor
    assert [told.decoded(damaged) for damaged in (None, "", "{}", "7", "\ud800")] == [None] * 5
    before = '{"failures_after": 7, "outbox": {"told": ["a"], "failures": 2, "not_before": %s, "refusals": {"b": 1}}}'
    for moment, at in (("null", None), ('"2026-11-22T10:00:00+00:00"', datetime(2026, 11, 22, 10, tzinfo=UTC))):
        assert told.decoded(before % moment) == Cursor(Outbox(frozenset("a"), 2, at, {"b": 1}), 7)
    kept = told.forget(outbox, ["incident-3-opened"])
    assert (kept.told, kept.refusals) == ({"incident-3-opened"}, {})


def test_a_message_for_slack_is_shaped_and_escaped_as_slack_wants_it() -> None:
    (message,) = told.of_incident(incident(detail={"0": "a <b> & c"}))
    document = told.slack(message, "http://dagster/runs/1")
    assert document["text"] == "fleet is dead: incident 1"
    section, context = document["blocks"]
    assert section["text"]["type"] == "mrkdwn"
    assert "a &lt;b&gt; &amp; c" in section["text"]["text"]
    assert len(section["text"]["text"]) < 3000
    assert "<http://dagster/runs/1|Dagster>" in context["elements"][0]["text"]


def test_a_long_reason_fits_into_a_message() -> None:
    _, ended = told.of_incident(incident(closed_at=NOW, outcome="failed", reason="<" * 10_000))
    assert len(ended.text) < 1600
