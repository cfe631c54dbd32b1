"""In which order a worker reads records, and how far the tasks before it are."""
