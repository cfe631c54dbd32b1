"""Access control in front of Dagster's webserver, in the same process: checks of host, origin, token and session."""
