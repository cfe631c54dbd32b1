"""Dagster jobs, one module for each job; ``asset_jobs`` has the jobs that only select assets or asset checks."""
