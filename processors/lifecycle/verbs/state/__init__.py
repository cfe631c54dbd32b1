"""Verbs that change the state of a processor: clear, backfill, restore, compact, reposition."""
