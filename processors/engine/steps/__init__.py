"""The common parts of all steps of a stream. This package imports no join, window or aggregate."""
