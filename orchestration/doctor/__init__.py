"""The command ``holdfast doctor``: ``gathering`` reads facts, and ``judging`` turns the facts into findings."""
