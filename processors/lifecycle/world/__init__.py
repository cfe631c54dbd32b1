"""The real side of the ports: facts and effects. Imports ``deploy``."""
