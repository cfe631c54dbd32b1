"""Spark code for changelogs, checkpoints, snapshots, history, audits and maintenance; does not import Dagster."""
