"""Writes a snapshot on branches, audits the branches, and publishes them."""
