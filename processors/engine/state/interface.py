"""The interface of state for user functions; ``state.store`` implements it."""

from __future__ import annotations

from typing import Any, Protocol


class State(Protocol):
    """The state of the current message's key in one store. A stateful function gets it as an argument."""

    def get(self, key: str, default: Any = None) -> Any:
        """A copy of the value of ``key``, or of ``default`` if the key has no value."""

    def set(self, key: str, value: Any) -> None:
        """Sets ``key`` to a JSON value.

        Raises:
            ValueNotStorable: JSON can't hold the value.
            RecordTooLarge: The record is larger than the changelog allows.
        """

    def delete(self, key: str) -> None:
        """Deletes ``key``; does nothing if the key has no value."""

    def exists(self, key: str) -> bool:
        """Whether ``key`` has a value."""

    def get_bytes(self, key: str, default: bytes | None = None) -> bytes | None:
        """The bytes of a value of ``set_bytes``, or ``default`` without one; TypeError for a value of ``set``."""

    def set_bytes(self, key: str, value: bytes) -> None:
        """Sets ``key`` to raw bytes."""
