"""Owner commands (count, export, clear, ...): requests that change the state of a task between two messages."""
