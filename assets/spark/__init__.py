"""DataFrame functions: changelog sources, fold, snapshot, fingerprint. No Dagster inside."""
