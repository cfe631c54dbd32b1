"""Commands that change state by a plan."""
