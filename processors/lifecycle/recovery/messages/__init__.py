"""Texts of the webhook, and the history of a processor."""
