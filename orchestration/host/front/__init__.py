"""The front of Dagster's webserver: who may ask what, in the same process as Dagster's own application."""
