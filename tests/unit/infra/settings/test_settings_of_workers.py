"""The settings that are recorded with a deployment, and the report of their changes."""

from __future__ import annotations

import msgspec

from holdfast.infra.settings import Settings
from holdfast.infra.settings.of_workers import (
    OF_OTHERS,
    OF_WORKERS,
    Recorded,
    as_recorded,
    differences,
    recorded_of,
    shown,
)

THERE = {
    "HOLDFAST_HOME": "/here",
    "HOLDFAST_MEMORY_MAX_MB": "512",
    "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": "b:9092",
    "HOLDFAST_KAFKA__CLIENT_CONFIG": '{"sasl.password": "hunter2"}',
    "HOLDFAST_CHECKPOINTS__URL": "s3://user:hunter2@bucket/x",
    "HOLDFAST_WEBSERVER__HOST": "127.0.0.1",
    "PYTHONPATH": "/project",
}


def test_each_setting_is_one_of_workers_or_of_others() -> None:
    assert set(Settings.model_fields) == OF_WORKERS | OF_OTHERS, "decide for a new setting whether workers read it"
    assert not OF_WORKERS & OF_OTHERS


def test_settings_of_workers_are_recorded_and_secrets_only_by_name() -> None:
    recorded = recorded_of(THERE)
    assert recorded == {
        "HOLDFAST_CHECKPOINTS__URL": None,
        "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": "b:9092",
        "HOLDFAST_KAFKA__CLIENT_CONFIG": None,
        "HOLDFAST_MEMORY_MAX_MB": "512",
    }
    assert as_recorded(THERE, recorded) == THERE


def test_a_start_elsewhere_has_the_recorded_settings_and_its_own_secrets_and_place() -> None:
    elsewhere = {
        "HOLDFAST_HOME": "/there",
        "HOLDFAST_MEMORY_MAX_MB": "4096",
        "HOLDFAST_STANDBY_REPLICAS": "2",
        "HOLDFAST_KAFKA__CLIENT_CONFIG": '{"sasl.password": "rotated"}',
    }
    assert as_recorded(elsewhere, recorded_of(THERE)) == {
        "HOLDFAST_HOME": "/there",
        "HOLDFAST_MEMORY_MAX_MB": "512",
        "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": "b:9092",
        "HOLDFAST_KAFKA__CLIENT_CONFIG": '{"sasl.password": "rotated"}',
    }
    assert differences(recorded_of(THERE), recorded_of(elsewhere)) == (
        "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS was b:9092, now unset",
        "HOLDFAST_MEMORY_MAX_MB was 512, now 4096",
        "HOLDFAST_STANDBY_REPLICAS was unset, now 2",
    )


def test_a_changed_secret_is_noticed_by_its_digest_and_never_shown() -> None:
    key = b"of this home"
    then, same = recorded_of(THERE, key), recorded_of(dict(THERE), key)
    rotated = {**THERE, "HOLDFAST_KAFKA__CLIENT_CONFIG": '{"sasl.password": "rotated"}'}
    assert differences(then, same) == ()
    assert differences(then, recorded_of(rotated, key)) == (
        "HOLDFAST_KAFKA__CLIENT_CONFIG was a secret, now another secret",
    )
    without = {name: value for name, value in THERE.items() if "CLIENT" not in name}
    assert differences(then, recorded_of(without, key)) == ("HOLDFAST_KAFKA__CLIENT_CONFIG was a secret, now unset",)
    assert differences(recorded_of(without, key), then) == ("HOLDFAST_KAFKA__CLIENT_CONFIG was unset, now a secret",)
    assert as_recorded(rotated, then) == rotated, "whoever starts a worker has the secret"
    stored = msgspec.json.encode(then)
    assert b"hunter2" not in stored
    assert msgspec.json.decode(stored, type=Recorded) == then
    assert then != recorded_of(THERE, b"of another home"), "without the key nobody can try passwords"
    assert shown(then)["HOLDFAST_KAFKA__CLIENT_CONFIG"] is None


def test_secrets_that_were_recorded_without_a_digest_are_not_compared() -> None:
    """Secrets that were recorded without a digest are not compared.

    A former version of Holdfast recorded secrets in this way.
    """
    rotated = {**THERE, "HOLDFAST_KAFKA__CLIENT_CONFIG": '{"sasl.password": "rotated"}'}
    assert differences(recorded_of(THERE), recorded_of(rotated, b"key")) == ()
