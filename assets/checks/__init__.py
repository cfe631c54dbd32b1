"""The asset checks. Each module converts a result of ``lifecycle`` or ``audits`` to a Dagster check result."""
