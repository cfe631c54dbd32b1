"""The templates of Dagster instances: on one machine, and on Postgres."""
