"""The state of a key, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.engine.state.interface import State

__all__ = ["State"]
