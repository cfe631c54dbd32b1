"""Deployers, which run workers as programs and outlive their callers: the interface, supervisord, and its files."""
