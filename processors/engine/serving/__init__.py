"""The HTTP server of a worker, and its client: status, metrics and control.

This package may import ``engine.runtime``, and not the other way round.
"""
