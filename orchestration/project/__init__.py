"""A user's project: creates its files, starts its processors, and records its code that can't be loaded."""
