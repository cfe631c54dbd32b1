"""The checks of assets: each makes a judgement of ``lifecycle`` or ``audits`` a result of Dagster."""
