"""What Dagster loads where a project has no definitions of its own; ``workspace.yaml`` names this module."""

from holdfast.orchestration.definitions import definitions

defs = definitions()
