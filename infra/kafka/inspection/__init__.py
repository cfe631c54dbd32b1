"""What brokers tell of themselves: sizes on disk, open transactions, versions, clocks. One call ends a transaction."""
