"""What a machine needs beyond Python, found or fetched: an environment, a Java, jars, a browser."""
