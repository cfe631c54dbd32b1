"""An alias: older versions had ``ProcessorRunCoordinator`` in this module; a ``dagster.yaml`` may still name it."""

from __future__ import annotations

from holdfast.orchestration.host.run_coordinator import ProcessorRunCoordinator

__all__ = ["ProcessorRunCoordinator"]
