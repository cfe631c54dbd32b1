"""Stream time, timers, and values that expire. This package imports the stores of ``state``."""
