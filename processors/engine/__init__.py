"""The code that runs in a worker: it reads, processes, commits, restores and serves status.

Of Holdfast's other packages, it imports only ``infra``.
"""
