"""Which settings are a part of a deployment."""

from __future__ import annotations

from holdfast.infra.settings import Settings
from holdfast.infra.settings.of_workers import OF_OTHERS, OF_WORKERS, as_recorded, differences, recorded_of

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
