"""The asset checks. Each converts a verdict of ``lifecycle`` or ``audits`` to a Dagster check result."""
