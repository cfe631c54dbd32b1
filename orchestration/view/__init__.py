"""Reads Dagster and the processors for the command line and for messages: runs, pages of assets, reasons."""
