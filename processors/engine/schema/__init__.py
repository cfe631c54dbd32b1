"""The typed columns of stores' warehouse tables. They come from models or are inferred from values, and can change.

This package imports ``infra``.
"""
