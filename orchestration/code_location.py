"""Dagster loads this module if a project has no definitions of its own; ``workspace.yaml`` names the module."""

# tidy: allow-crumb because Dagster loads this module by its name
from holdfast.orchestration.definitions import definitions

defs = definitions()
