"""The common parts of all steps of a stream. Imports no join, window or aggregate."""
