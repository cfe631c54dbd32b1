"""The names of all settings, as keys of the project file and as environment variables; read from pydantic's models."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION

PREFIX = "HOLDFAST_"


class SettingsInvalid(HoldfastError):
    """A setting has a value that can't be used."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class SettingName:
    """One setting: its key in the project file, for example ``("kafka", "client_config")``, and its pydantic field."""

    key: tuple[str, ...]
    field: FieldInfo

    @property
    def name(self) -> str:
        """The key with dots, for example ``kafka.bootstrap_servers``."""
        return ".".join(self.key)

    @property
    def variable(self) -> str:
        """The environment variable, for example ``HOLDFAST_KAFKA__BOOTSTRAP_SERVERS``."""
        return PREFIX + "__".join(self.key).upper()

    @property
    def holds_keys(self) -> bool:
        """Whether the value is an object whose keys the user chooses, for example ``workers`` (processor -> number)."""
        return self.field.default_factory is dict

    @property
    def secret(self) -> bool:
        """Whether the value is a secret, which must not be shown."""
        return not self.field.repr


def settings_of(model: type[BaseModel], within: tuple[str, ...] = ()) -> Iterator[SettingName]:
    """Yields every setting of a settings class and of its groups, in the order of declaration.

    A group itself is also a setting, because one variable can set the whole group as JSON.
    """
    for name, field in model.model_fields.items():
        key = (*within, name)
        yield SettingName(key, field)
        if is_group(field):
            yield from settings_of(field.annotation, key)  # type: ignore[arg-type]  # a group is a model


def is_group(field: FieldInfo) -> bool:
    """Whether a field of ``Settings`` is a group of settings, for example ``kafka``."""
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def nearest_setting(model: type[BaseModel], name: str) -> SettingName | None:
    """The setting whose name is most similar to ``name`` (a key or a variable); None if no name is similar."""
    known = {"__".join(each.key).upper(): each for each in settings_of(model)}
    asked = name.upper().removeprefix(PREFIX).replace(".", "__")
    near = difflib.get_close_matches(asked, known, 1)
    return known[near[0]] if near else None


def field_at(model: type[BaseModel], key: tuple[Any, ...]) -> FieldInfo | None:
    """The pydantic field at this key; None if there is no such field."""
    found = None
    for part in key:
        found = getattr(model, "model_fields", {}).get(part)
        if found is None:
            return None
        model = found.annotation
    return found
