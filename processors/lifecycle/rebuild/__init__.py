"""Rebuilds state from source topics, tables or files. It imports the package ``deploy``."""
