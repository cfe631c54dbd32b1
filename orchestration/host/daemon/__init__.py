"""Dagster's daemon with a long-lived code server; Dagster's own daemon starts a new code server each minute."""
