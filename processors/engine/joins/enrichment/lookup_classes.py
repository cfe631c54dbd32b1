"""``join_lookup`` with an object of a lookup class, as in Quix Streams.

The lookup object adds the fields to the value by itself, in its method ``join``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.joins.lookups import LookupKeyInvalid, LookupOn
from holdfast.processors.engine.steps.in_place import Touch
from holdfast.processors.engine.steps.step import Step


@dataclass(frozen=True)
class BaseField:
    """Base class of the items of ``fields``. An item describes how the lookup computes one new field of the value."""


F = TypeVar("F", bound=BaseField)


class BaseLookup(ABC, Generic[F]):
    """Base class of lookups, which add data of another system to values. A subclass implements ``join``."""

    @abstractmethod
    def join(
        self, fields: Mapping[str, F], on: Any, value: dict[str, Any], key: Any, timestamp: int, headers: Headers
    ) -> None:
        """Sets the new fields in ``value``, in place.

        Args:
            fields: Maps the name of each new field to the item that describes it.
            on: The key of the row to look up.
            value: The message's value.
            key: The message's key.
            timestamp: The message's event time in milliseconds since 1970.
            headers: The message's headers.
        """


class LookedUp(Step):
    """The step of ``sdf.join_lookup`` with a ``BaseLookup``."""

    __slots__ = ("_fields", "_lookup", "_on")

    def __init__(self, lookup: BaseLookup[Any], fields: Mapping[str, BaseField], on: LookupOn) -> None:
        self._lookup, self._fields, self._on = lookup, dict(fields), on

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step: the lookup's method ``join``, and the function that returns the row's key."""
        return (type(self._lookup).join, *([self._on] if callable(self._on) else []))

    @property
    def touches(self) -> Touch:
        """Returns ``Touch.ALL``, because the lookup sets fields of the value and may change objects inside it."""
        return Touch.ALL

    def describe(self) -> str:
        """Describes the lookup and its fields. If this text changes, the processor gets a new code version."""
        on = self._on if isinstance(self._on, str) else "a function" if self._on else "the key"
        return f"join_lookup {type(self._lookup).__qualname__} on {on}: {self._fields!r}"

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        """Calls the lookup, which sets the new fields in the value.

        Raises:
            LookupKeyInvalid: The value lacks the field that contains the row's key.
            Exception: The error that the lookup raised.
        """
        if callable(self._on):
            on = self._on(value, key)
        elif self._on is None:
            on = key
        else:
            try:
                on = value[self._on]
            except (TypeError, LookupError) as failure:
                raise LookupKeyInvalid(
                    f"`join_lookup` asks by the field {self._on!r}; a value of type {type(value).__name__} lacks it.",
                    action="Filter such messages out, or give `on` a function of (value, key).",
                    field=self._on,
                ) from failure
        self._lookup.join(self._fields, on, value, key, timestamp, headers)


def own_copy(found: Any) -> Any:
    """Returns a copy of a cached row, because later steps may change the row in the value."""
    return deepcopy(found) if isinstance(found, (dict, list)) else found
