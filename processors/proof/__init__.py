"""The proof of a version, before it replaces the running one: both run on the last messages, in memory."""
