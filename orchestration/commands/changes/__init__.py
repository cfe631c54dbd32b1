"""Commands that change processors or their state; each change is planned, shown and then applied."""
