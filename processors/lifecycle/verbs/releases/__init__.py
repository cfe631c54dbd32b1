"""Verbs that change which version of a processor runs, and with how many workers."""
