"""Dagster jobs, one module for each, and for the jobs over assets."""
