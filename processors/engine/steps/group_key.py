"""The new key of a message behind ``group_by``, and how keys are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.formats.typed import field_of
from holdfast.processors.engine.steps.step import Step


class GroupKeyInvalid(HoldfastError):
    """A message has no value that its ``group_by`` can use as a key."""


@dataclass(frozen=True, slots=True)
class GroupKey(Step):
    """The new key of a message: a field of its value, or the result of a function of the value."""

    by: str | Callable[[Any], Any]
    name: str

    def __call__(self, value: Any) -> Any:
        """The key.

        Raises:
            GroupKeyInvalid: The value is missing or None.
        """
        if not isinstance(self.by, str):
            made = self.by(value)
        elif isinstance(value, Mapping):
            made = value.get(self.by)
        else:
            made = field_of(value, self.by)
        if made is None:
            where = f"field {self.by!r}" if isinstance(self.by, str) else "function"
            raise GroupKeyInvalid(
                f"The {where} of group_by {self.name!r} gives no key for a value of type {type(value).__name__}: "
                "a message without a key belongs to no partition.",
                action="Filter such messages before `group_by`, or set `dead_letter_topic`.",
                group_by=self.name,
            )
        return made

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's function, if there is one."""
        return () if isinstance(self.by, str) else (self.by,)

    def describe(self) -> str:
        """What decides the key, in a line."""
        return f"group_by {self.name}: {self.by if isinstance(self.by, str) else 'function'}"


def text_of_key(key: Any) -> bytes:
    """The default serializer of keys: texts unchanged, numbers in JSON's form."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    if isinstance(key, int):
        return json.dumps(key).encode()
    raise TypeError(f"expected a text, bytes or a whole number, got {type(key).__name__}")
