"""Deployers start and stop workers as separate programs, which keep running after the caller exits.

The package has the interface (``deployer.py``), its implementation for supervisord, and the files that they write.
"""
