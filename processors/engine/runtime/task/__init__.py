"""One task of a processor: its offsets, its steps, its stream time and its failed messages. May import ``reading``."""
