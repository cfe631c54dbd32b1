"""The proof of a new version before it replaces the running one: both versions process the last messages in memory."""
