"""What Dagster loads where a project has no definitions of its own; ``workspace.yaml`` names this module."""

# tidy: allow-crumb because Dagster loads it by this name
from holdfast.orchestration.definitions import definitions

defs = definitions()
