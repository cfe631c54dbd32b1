"""The steps of tables, of joins, and of lookups in other systems."""
