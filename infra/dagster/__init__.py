"""Templates of ``dagster.yaml``: one for a single machine, and one for production with Postgres."""
