"""The former place of ``LocalInstance``; a ``dagster.yaml`` of an older Holdfast still names this module."""

from __future__ import annotations

from holdfast.orchestration.host.opening import LocalInstance

__all__ = ["LocalInstance"]
