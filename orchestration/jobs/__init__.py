"""Dagster jobs: one module for each job, and one for the jobs over assets."""
