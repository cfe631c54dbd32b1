"""An alias module: ``LocalInstance`` was here in an older Holdfast. A ``dagster.yaml`` may still name this module."""

from __future__ import annotations

from holdfast.orchestration.host.opening import LocalInstance

__all__ = ["LocalInstance"]
