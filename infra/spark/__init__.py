"""The Spark session."""
