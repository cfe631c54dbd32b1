"""Snapshots of stores as table versions: what they are made from, when that is safe, and what is said of them; pure."""
