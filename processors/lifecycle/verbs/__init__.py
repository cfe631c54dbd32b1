"""One pure module for each verb: facts in, plan out. Imports ``plans``."""
