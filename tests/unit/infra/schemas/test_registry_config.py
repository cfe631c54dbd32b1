"""The address and the credentials of a schema registry, from arguments and settings. No text shows a secret."""

from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError

from holdfast import SchemaRegistryClientConfig, SchemaRegistrySerializationConfig
from holdfast.infra.masking import masked
from holdfast.infra.schemas.config import SchemaRegistryInvalid
from holdfast.infra.settings.schema_registry import SchemaRegistrySettings

SETTINGS = SchemaRegistrySettings(
    url="https://registry:8081", user="worker", password="sesame-open", ca_location="ca.pem", options={"proxy": "p"}
)


def test_without_a_url_everything_that_is_left_out_comes_from_the_settings() -> None:
    found = SchemaRegistryClientConfig().properties(SETTINGS)
    assert found["url"] == "https://registry:8081"
    assert found["basic.auth.user.info"] == "worker:sesame-open"
    assert (found["ssl.ca.location"], found["proxy"]) == ("ca.pem", "p")


def test_with_a_url_nothing_of_the_settings_goes_there() -> None:
    found = SchemaRegistryClientConfig(url="http://elsewhere").properties(SETTINGS)
    assert set(found) == {"url", "timeout", "max.retries"}


def test_another_way_to_sign_in_replaces_that_of_the_settings() -> None:
    found = SchemaRegistryClientConfig(bearer_auth_token="a-token-for-tests").properties(SETTINGS)
    assert "basic.auth.user.info" not in found
    assert found["bearer.auth.token"] == "a-token-for-tests"


def test_secrets_of_pydantic_are_taken_and_none_is_shown() -> None:
    made = SchemaRegistryClientConfig(url="http://r", basic_auth_user_info=SecretStr("me:a-password-of-mine"))  # type: ignore[arg-type]
    assert made.properties(SETTINGS)["basic.auth.user.info"] == "me:a-password-of-mine"
    assert "a-password-of-mine" not in repr(made)
    assert masked("it said a-password-of-mine") == "it said ***"


def test_no_url_anywhere_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(SchemaRegistryInvalid) as refused:
        SchemaRegistryClientConfig().properties(SchemaRegistrySettings())
    assert "HOLDFAST_SCHEMA_REGISTRY__URL" in refused.value.action


@pytest.mark.parametrize(
    "arguments",
    [{"basic_auth_user_info": "me"}, {"url": 7}, {"basic_auth_user_info": "a:b", "bearer_auth_token": "t"}],
)
def test_arguments_that_contradict_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(SchemaRegistryInvalid):
        SchemaRegistryClientConfig(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [{"use_latest_version": True}, {"schema_id": "footer"}, {"subject_name_strategy": "subject"}]
)
def test_ways_to_write_that_contradict_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(SchemaRegistryInvalid):
        SchemaRegistrySerializationConfig(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "https://me:secret@registry"},
        {"password": "x"},
        {"user": "a", "token": "t"},
        {"key_location": "k"},
        {"url": "registry:8081"},
    ],
)
def test_settings_that_can_not_be_used_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        SchemaRegistrySettings(**settings)  # type: ignore[arg-type]
