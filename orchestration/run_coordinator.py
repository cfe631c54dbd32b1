"""An alias module: ``ProcessorRunCoordinator`` was here in an older Holdfast. A ``dagster.yaml`` may still name it."""

from __future__ import annotations

from holdfast.orchestration.host.run_coordinator import ProcessorRunCoordinator

__all__ = ["ProcessorRunCoordinator"]
