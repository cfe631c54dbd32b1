"""Deployers, which run processors and outlive their callers: the port, supervisord, and the files of programs."""
