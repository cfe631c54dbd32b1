"""Stream time, timers, and values that expire. This package may import the stores of ``state``."""
