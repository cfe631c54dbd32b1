"""Mistakes in settings: unknown names, secrets that an error must not show, and addresses without authentication."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from holdfast.infra.settings import SettingsInvalid, is_loopback, load_settings, unknown_variables
from holdfast.infra.settings import settings as settings_module

SECRET = "the-secret-of-this-test"


@pytest.fixture(autouse=True)
def _nothing_warned_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(settings_module, "_warned", set())
    structlog.configure()
    yield
    structlog.reset_defaults()


def test_a_typo_is_warned_of_once_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STUCK_AFTERS", "5")
    with capture_logs() as events:
        assert load_settings().stuck_after_s == 30
        load_settings()
    assert [(event["variable"], event["nearest"]) for event in events] == [
        ("HOLDFAST_STUCK_AFTERS", "HOLDFAST_STUCK_AFTER_S")
    ]
    assert events[0]["log_level"] == "warning"


def test_the_warning_is_no_part_of_what_programs_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    structlog.reset_defaults()
    monkeypatch.setenv("HOLDFAST_SERVNG__HOST", "0.0.0.0")
    load_settings()
    said = capsys.readouterr()
    assert said.out == ""
    assert "HOLDFAST_SERVING__HOST" in said.err


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("HOLDFAST_SERVNG__TOKEN", "HOLDFAST_SERVING__TOKEN"),
        ("HOLDFAST_KAFKA_BOOTSTRAP_SERVERS", "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS"),
        ("holdfast_log_levl", "HOLDFAST_LOG_LEVEL"),
        ("HOLDFAST_XYZZY", None),
    ],
)
def test_what_is_near_an_unknown_name(name: str, nearest: str | None) -> None:
    assert unknown_variables([name, "PATH"]) == {name: nearest}


@pytest.mark.parametrize(
    "name",
    [
        "HOLDFAST_HOME",
        "holdfast_home",
        "HOLDFAST_KAFKA",
        "HOLDFAST_KAFKA__CLIENT_CONFIG",
        "HOLDFAST_KAFKA__CLIENT_CONFIG__SECURITY.PROTOCOL",
        "HOLDFAST_TEST_NO_SKIPS",
        "HOME",
    ],
)
def test_what_is_no_mistake(name: str) -> None:
    assert unknown_variables([name]) == {}


def test_an_unknown_name_in_a_group_is_refused_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SERVING__TOKN", SECRET)
    with pytest.raises(SettingsInvalid, match="nearest is HOLDFAST_SERVING__TOKEN") as refused:
        load_settings()
    assert refused.value.exit_code == 64
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "worker-1.example"])
def test_an_address_that_others_reach_needs_a_token(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("HOLDFAST_SERVING__HOST", host)
    with pytest.raises(SettingsInvalid, match="HOLDFAST_SERVING__TOKEN") as refused:
        load_settings()
    assert refused.value.exit_code == 64
    monkeypatch.setenv("HOLDFAST_SERVING__TOKEN", SECRET)
    assert load_settings().serving.host == host


@pytest.mark.parametrize(
    ("host", "ours"), [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("LocalHost", True)]
)
def test_loopback_needs_none(host: str, ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SERVING__HOST", host)
    assert load_settings().serving.on_loopback is ours
    assert not is_loopback("localhost.example")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HOLDFAST_SERVING__TOKEN", "hunter2"),
        ("HOLDFAST_SERVING__TOKEN", "with a blank in it, hunter2"),
        ("HOLDFAST_SERVING", '{"host": "0.0.0.0", "tokn": "hunter2"}'),
        ("HOLDFAST_KAFKA__CLIENT_CONFIG", '{"sasl.password": ["hunter2"]}'),
        ("HOLDFAST_KAFKA__CLIENT_CONFIG", '["hunter2"]'),
    ],
)
def test_a_refusal_shows_no_secret(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsInvalid, match=variable) as refused:
        load_settings()
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in str(refused.value.as_dict())
    assert refused.value.__cause__ is None


def test_settings_shown_show_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SERVING__TOKEN", SECRET)
    settings = load_settings()
    assert settings.serving.token == SECRET
    assert SECRET not in repr(settings) + str(settings)
