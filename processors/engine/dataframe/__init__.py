"""The steps of a stream, and their compilation to a loop over messages.

It imports all packages of the engine that declare steps, for example ``windows``, ``joins`` and ``aggregates``.
"""
