"""``holdfast doctor``: ``judging`` decides from facts, ``gathering`` reads them."""
