"""The warehouse without a JVM: the Iceberg catalog, table versions, and the removal of tables."""
