"""Steps of a stream and built-in aggregations. Imports ``state`` and ``schema``."""
