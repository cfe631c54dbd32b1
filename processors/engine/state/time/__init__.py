"""Stream time, timers, and values that end. Imports the stores of ``state``."""
