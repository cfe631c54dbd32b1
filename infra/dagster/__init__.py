"""The template of a local Dagster instance."""
