"""The command ``holdfast demo``: processes real flights, kills three processors, and verifies every result."""
