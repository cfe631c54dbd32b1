"""Finds or fetches the parts of a machine beyond Python: an environment, a Java, jars, a browser."""
