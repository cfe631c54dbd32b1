"""Spark functions: changelog and checkpoint sources, snapshots, history, audits, maintenance. No Dagster here."""
