"""What Dagster and the processors say, for the command line and for messages: runs, pages of assets, reasons."""
