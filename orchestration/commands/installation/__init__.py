"""Commands about this machine and the project: set up, start, check, logs."""
