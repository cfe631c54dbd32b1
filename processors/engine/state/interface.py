"""The interface of state for user functions; ``state.store`` implements it."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.processors.engine.state.methods import Ttl


class State(Protocol):
    """The state of the current message's key in one store.

    A stateful function gets it as an argument.
    """

    def get(self, key: str, default: Any = None) -> Any:
        """A copy of the value of ``key``, or of ``default`` if the key has no value."""

    def set(self, key: str, value: Any, *, ttl: Ttl = None) -> None:
        """Sets ``key`` to a JSON value, or to an instance of its model in a store with models.

        Args:
            key: The state key.
            value: The value.
            ttl: How long the value is readable after the message's event time, in milliseconds or as a timedelta. The
                store must declare it: ``app.store(name, ttl=...)``.

        Raises:
            StateValueInvalid: The value does not fit its model, or the store does not declare ``ttl``.
            ValueNotStorable: JSON can't hold the value.
            RecordTooLarge: The record is larger than the changelog allows.
        """

    def delete(self, key: str) -> None:
        """Deletes ``key``; does nothing if the key has no value."""

    def exists(self, key: str) -> bool:
        """Whether ``key`` has a value."""

    def increment(self, key: str, by: float = 1) -> Any:
        """Adds ``by`` to the number of ``key``, 0 without a value, and returns the total.

        Raises:
            StateValueInvalid: The value or ``by`` is no number.
        """

    def append(self, key: str, item: Any, keep_last: int | None = None) -> list[Any]:
        """Appends ``item`` to the list of ``key``, empty without a value, and returns the list.

        Args:
            key: The state key.
            item: A JSON value.
            keep_last: Keeps only the newest items, so many; None keeps all.

        Raises:
            StateValueInvalid: The value is no list.
        """

    def pop(self, key: str, default: Any = None) -> Any:
        """Deletes ``key`` and returns its value, or ``default`` without one."""

    def items(
        self,
        prefix: str = "",
        start: str | None = None,
        end: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[tuple[str, Any]]:
        """State keys of the message's key with their values, in the order of their UTF-8 bytes.

        The result includes the function's own writes for this message. The cost is proportional to the result's size.

        Args:
            prefix: What the keys begin with.
            start: The first key of the range is this key or a later one.
            end: The range ends before this key.
            reverse: Whether the order is reversed: the last key comes first.
            limit: At most so many keys; None for all.
        """

    def keys(
        self,
        prefix: str = "",
        start: str | None = None,
        end: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[str]:
        """The state keys of ``items``, without their values."""

    def get_bytes(self, key: str, default: bytes | None = None) -> bytes | None:
        """The bytes of a value of ``set_bytes``, or ``default`` without one; TypeError for a value of ``set``."""

    def set_bytes(self, key: str, value: bytes, *, ttl: Ttl = None) -> None:
        """Sets ``key`` to raw bytes; ``ttl`` as for ``set``."""
