"""The order in which a worker reads records, and the progress of the upstream tasks."""
