"""Deployers start and stop workers as separate programs, which keep running after the caller exits.

The package has the interface of deployers, the deployer for supervisord, and the formats of files: launch files, marks
(copies of deployment records), and announced changes of the number of workers.
"""
