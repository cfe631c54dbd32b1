"""One task of a processor: its offsets, its steps, its time and its failures. Imports ``reading``."""
