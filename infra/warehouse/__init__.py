"""Access to the warehouse's Iceberg catalog and tables without a JVM (without Spark)."""
