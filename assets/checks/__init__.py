"""The asset checks. Each module converts results of package ``lifecycle`` or ``audits`` to Dagster check results."""
