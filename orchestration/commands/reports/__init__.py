"""Commands that show state, history and figures, and change nothing."""
