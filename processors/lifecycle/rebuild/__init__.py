"""State from a topic or from a table. Imports ``deploy``."""
