"""Adapters to the operating system: processes, files and their permissions, memory, ports."""
