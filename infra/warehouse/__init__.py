"""The Iceberg catalog for readers without a JVM."""
