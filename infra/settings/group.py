"""What all groups of settings share; imports none of them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError

PREFIX = "HOLDFAST_"


class SettingsInvalid(HoldfastError):
    """A setting has a value that can't be used."""

    exit_code = EXIT_BAD_CONFIGURATION


def _as_text(value: Any) -> Any:
    """A number or boolean of JSON in librdkafka's syntax."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


#: Settings of a library by name.
Properties = dict[str, Annotated[str, BeforeValidator(_as_text)]]


class Group(BaseModel):
    """Settings with a common prefix. Secrets are plain strings, because settings become the environment of programs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
