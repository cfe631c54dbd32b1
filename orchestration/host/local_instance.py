"""An alias: older versions had ``LocalInstance`` in this module; a ``dagster.yaml`` may still name the module."""

from __future__ import annotations

from holdfast.orchestration.host.opening import LocalInstance

__all__ = ["LocalInstance"]
