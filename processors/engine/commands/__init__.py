"""The owner commands: work that only the worker that owns the state may do, for example clear, adopt and reseed."""
