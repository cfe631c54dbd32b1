"""Commands that show state, history and figures of processors, and change nothing."""
