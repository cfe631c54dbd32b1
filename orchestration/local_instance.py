"""Kept for a ``dagster.yaml`` of an older version, which names ``LocalInstance`` here. ``host`` has the code."""

from __future__ import annotations

from holdfast.orchestration.host.opening import LocalInstance

__all__ = ["LocalInstance"]
