"""The interface of state for user functions; ``state.store`` implements it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Protocol

from holdfast.processors.engine.state.methods import Ttl


class State(Protocol):
    """The values of one store for the key of the current message. They are accessed by state key, like a dict.

    Holdfast passes an object of this type as an argument to every stateful function.
    """

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a copy of the value of ``key``. If there is no value, returns a copy of ``default``."""

    def set(self, key: str, value: Any, *, ttl: Ttl = None) -> None:
        """Sets the value of ``key``. If the store has a model, the value may also be an instance of the model.

        Args:
            key: The state key.
            value: The new value.
            ttl: Time for which the value stays readable, counted from the message's event time. In milliseconds or as a
                timedelta. The store must declare it: ``app.store(name, ttl=...)``.

        Raises:
            StateValueInvalid: The value does not fit its model, or the store does not declare ``ttl``.
            ValueNotStorable: The store's codec (JSON by default) would change the value.
            RecordTooLarge: The record is larger than the changelog allows.
        """

    def delete(self, key: str) -> None:
        """Deletes ``key``; does nothing if the key has no value."""

    def exists(self, key: str) -> bool:
        """Whether ``key`` has a value."""

    def increment(self, key: str, by: float | Decimal = 1) -> Any:
        """Adds ``by`` to the number stored under ``key`` and returns the total.

        A missing number counts as 0.

        Raises:
            StateValueInvalid: The value or ``by`` is no number.
        """

    def append(self, key: str, item: Any, keep_last: int | None = None) -> list[Any]:
        """Appends ``item`` to the list stored under ``key`` and returns the list.

        A missing list counts as empty.

        Args:
            key: The state key.
            item: A JSON value.
            keep_last: The maximum length of the list; the oldest items are dropped. None keeps all items.

        Raises:
            StateValueInvalid: The value is no list.
        """

    def pop(self, key: str, default: Any = None) -> Any:
        """Deletes ``key`` and returns its value. If there is no value, returns ``default``."""

    def items(
        self,
        prefix: str = "",
        start: str | None = None,
        end: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[tuple[str, Any]]:
        """Returns state keys of the current message key with their values, sorted by the state keys' UTF-8 bytes.

        The result includes writes that the function made for this message. The cost is proportional to the result's
        size.

        Args:
            prefix: Only keys that begin with this text.
            start: The lower bound of the keys, inclusive; None for no bound.
            end: The upper bound of the keys, exclusive; None for no bound.
            reverse: True returns the keys in descending order.
            limit: The maximum number of keys; None returns all.
        """

    def keys(
        self,
        prefix: str = "",
        start: str | None = None,
        end: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[str]:
        """Returns the same state keys as ``items``, without their values."""

    def get_bytes(self, key: str, default: bytes | None = None) -> bytes | None:
        """Returns the bytes that ``set_bytes`` stored. If there is no value, returns ``default``.

        Raises TypeError if ``set`` stored the value.
        """

    def set_bytes(self, key: str, value: bytes, *, ttl: Ttl = None) -> None:
        """Sets the value of ``key`` to raw bytes; ``ttl`` has the same meaning as in ``set``."""
