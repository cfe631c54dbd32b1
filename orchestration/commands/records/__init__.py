"""Commands about records of topics and their types."""
