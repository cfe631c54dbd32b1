"""For a ``dagster.yaml`` of a former version: it names ``LocalInstance`` here. ``opening`` has the code."""

from __future__ import annotations

from holdfast.orchestration.host.opening import LocalInstance

__all__ = ["LocalInstance"]
