"""Messages to a webhook: what each answer means, and that its URL is told nobody."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from holdfast.infra.settings import SettingsInvalid, load_settings
from holdfast.infra.webhook import post, shown
from tests.webhook import SECRET, Webhook

PARTS = (SECRET, *SECRET.split("/"))


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    there = Webhook()
    yield there
    there.stop()


def test_a_message_arrives_with_its_identity(webhook: Webhook) -> None:
    answer = post(webhook.start().url, {"text": "é"}, identity="incident-1-opened")
    assert answer.accepted
    assert webhook.received == [{"text": "é"}]
    assert webhook.identities == ["incident-1-opened"]


@pytest.mark.parametrize(("status", "refused"), [(400, True), (413, True), (404, False), (500, False), (302, False)])
def test_an_answer_says_whether_the_message_is_at_fault(webhook: Webhook, status: int, refused: bool) -> None:
    webhook.status = status
    webhook.headers = {"Location": "http://127.0.0.1:1/elsewhere"}
    answer = post(webhook.start().url, {}, identity="one")
    assert (answer.status, answer.accepted, answer.refused) == (status, False, refused)


def test_a_webhook_that_asks_for_a_pause_is_heard(webhook: Webhook) -> None:
    webhook.status, webhook.headers = 429, {"Retry-After": "30"}
    assert post(webhook.start().url, {}, identity="one").pause_s == 30.0


def test_neither_a_dead_nor_a_silent_webhook_shows_its_url(webhook: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    away = post(webhook.url, {}, identity="one")
    webhook.status = None
    silent = post(webhook.start().url, {}, identity="one", timeout_s=0.1)
    assert away.status is None
    assert silent.status is None
    for part in PARTS:
        assert part not in away.words + silent.words + caplog.text + shown(webhook.url)


def test_a_url_with_a_mistake_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (
        f"ftp://host/{SECRET}",
        f"https://user:{SECRET}@host/",
        "https://user:SECRET@host/",
        f"https://host/a b {SECRET}",
    ):
        monkeypatch.setenv("HOLDFAST_WEBHOOK__URL", wrong)
        with pytest.raises(SettingsInvalid) as refused:
            load_settings()
        assert "HOLDFAST_WEBHOOK__URL" in refused.value.message
        assert "SECRET" not in str(refused.value)


def test_settings_do_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_WEBHOOK__URL", f"https://hooks.example.com/{SECRET}")
    assert SECRET not in repr(load_settings())
