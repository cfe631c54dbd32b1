"""Computes the new key of a message for ``group_by`` and for outputs, and serializes keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.formats.typed import field_of
from holdfast.processors.engine.steps.step import Step


class GroupKeyInvalid(HoldfastError):
    """A message has no value that ``group_by`` can use as its key."""


@dataclass(frozen=True, slots=True)
class GroupKey(Step):
    """Computes the new key of a message: a field of its value, or the result of a user's function of the value."""

    by: str | Callable[[Any], Any]
    name: str

    def __call__(self, value: Any) -> Any:
        """Returns the new key of a message.

        Raises:
            GroupKeyInvalid: The field is missing, or the key is None.
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
        """The user's function in a tuple; empty if the key is a field of the value."""
        return () if isinstance(self.by, str) else (self.by,)

    def describe(self) -> str:
        """Describes in one line of text how the key is computed."""
        return f"group_by {self.name}: {self.by if isinstance(self.by, str) else 'function'}"


@dataclass(frozen=True, slots=True)
class PassingKey(Step):
    """The key function of an output that sends the message's own key, for a topic with keys of another type.

    Attributes:
        change: Changes the message's raw key to a raw key of the output topic.
        functions_of_output: The other user functions of the output, such as the one of its headers.
    """

    change: Callable[[bytes], bytes]
    functions_of_output: tuple[Callable[..., Any], ...] = ()

    def __call__(self, raw_key: bytes) -> bytes:
        """Returns the raw key of the output."""
        return self.change(raw_key)

    @property
    def key_change(self) -> Callable[[bytes], bytes]:
        """Changes the message's raw key to a raw key of the output topic."""
        return self.change

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the output."""
        return self.functions_of_output


def text_of_key(key: Any) -> bytes:
    """Serializes a key if the user gave no serializer: texts as UTF-8, bytes unchanged, whole numbers as in JSON."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    if isinstance(key, int):
        return json.dumps(key).encode()
    raise TypeError(f"expected a text, bytes or a whole number, got {type(key).__name__}")
