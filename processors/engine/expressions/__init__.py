"""Expressions of columns: what ``sdf["price"] * sdf["n"]`` is, and the steps that compute it."""
