"""One task: its facts, its steps, its time and its failures. Imports ``reading``."""
