"""The example processors: one module each. The setting `processors` names their ``application``."""
