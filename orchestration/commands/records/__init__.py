"""Commands that send and print records of topics, and print the JSON Schemas of commands."""
