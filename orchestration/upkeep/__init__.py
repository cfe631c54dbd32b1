"""What the job ``upkeep`` prunes: Dagster's runs and events, records of the registry, logs, copies."""
