"""The proof of a defined version before it replaces the running version: both process the last messages in memory."""
