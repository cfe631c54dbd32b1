"""The Dagster definitions for a project without its own definitions; ``workspace.yaml`` names this module."""

# tidy: allow-crumb because Dagster loads it by this name
from holdfast.orchestration.definitions import definitions

defs = definitions()
