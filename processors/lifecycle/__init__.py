"""The life of state: facts, plan, explain, apply; one module for each verb. No Dagster inside."""
