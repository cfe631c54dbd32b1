"""From the assignment of a partition to a task that runs, and to its end. Imports ``task``."""
