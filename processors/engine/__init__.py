"""The code that runs in a worker: it reads, processes, commits, restores and serves status.

It imports only ``infra``.
"""
