"""One module for each version of the registry's database schema."""
