"""The steps of a stream, and their compilation to a loop. This package imports ``state`` and ``schema``."""
