"""The HTTP server of a worker, and its client: status, metrics and control. This package imports ``runtime``."""
