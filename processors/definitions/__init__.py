"""The example processors: one module each. `HOLDFAST_PROCESSORS` names their ``application``."""
