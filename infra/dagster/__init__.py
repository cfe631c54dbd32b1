"""Templates of Dagster's instance configuration: for one machine, and for Postgres."""
