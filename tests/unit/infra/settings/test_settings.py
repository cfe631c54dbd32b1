"""Settings are read from the environment once, and an error names the wrong setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.infra.settings import PROJECT, MemoryTooSmall, SettingsInvalid, load_settings


def test_without_an_environment_all_lies_below_the_checkout() -> None:
    settings = load_settings()
    assert settings.home == PROJECT / ".holdfast"
    assert settings.kafka.bootstrap_servers is None
    assert settings.registry == f"sqlite:///{settings.paths.registry}"


def test_nested_settings_use_two_underscores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", "kafka-1:9092")
    monkeypatch.setenv("HOLDFAST_KAFKA__CLIENT_CONFIG", '{"security.protocol": "SASL_SSL"}')
    monkeypatch.setenv("HOLDFAST_PROCESSORS", '["a.b:app"]')
    settings = load_settings()
    assert settings.kafka.bootstrap_servers == "kafka-1:9092"
    assert settings.kafka.client_config == {"security.protocol": "SASL_SSL"}
    assert settings.processors == ("a.b:app",)


def test_the_home_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", "here")
    assert load_settings().home == tmp_path / "here"


@pytest.mark.parametrize(
    ("given", "store"),
    [
        ("kept/here", "{home}/kept/here"),
        ("file://kept", "{home}/kept"),
        ("/mnt/kept", "/mnt/kept"),
        ("file:///mnt/kept", "/mnt/kept"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("s3:bucket", "s3:bucket"),
        ("", "{home}/checkpoint-store"),
    ],
)
def test_a_relative_checkpoint_folder_is_below_the_home_wherever_the_process_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, store: str
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS__URL", given)
    monkeypatch.chdir(tmp_path)
    assert load_settings().checkpoint_store == store.format(home=tmp_path / "home")


@pytest.mark.parametrize("given", ["1", "223"])
def test_a_memory_bound_below_what_works_is_refused_where_settings_are_read(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("HOLDFAST_MEMORY_MAX_MB", given)
    with pytest.raises(MemoryTooSmall, match="a worker needs at least 234,881,024") as refused:
        load_settings()
    assert "Set `HOLDFAST_MEMORY_MAX_MB` to 224 or more" in str(refused.value.action)
    monkeypatch.setenv("HOLDFAST_MEMORY_MAX_MB", "224")
    assert load_settings().memory_max_mb == 224


@pytest.mark.parametrize(
    ("variable", "value"),
    [("HOLDFAST_KAFKA__EMBEDDED_PORT", "80"), ("HOLDFAST_LOG_LEVEL", "LOUD"), ("HOLDFAST_STUCK_AFTER_S", "0")],
)
def test_a_bad_value_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsInvalid) as failure:
        load_settings()
    assert variable in failure.value.message
    assert value in failure.value.message
    assert failure.value.exit_code == 64


def test_client_settings_may_be_numbers_and_booleans_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KAFKA__CLIENT_CONFIG", '{"socket.timeout.ms": 6000, "socket.keepalive.enable": true}')
    settings = load_settings()
    assert settings.kafka.client_config == {"socket.timeout.ms": "6000", "socket.keepalive.enable": "true"}
