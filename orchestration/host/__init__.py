"""All code that uses Dagster's private modules (``dagster._…``): daemon, webserver, launcher, run queue, pruning."""
