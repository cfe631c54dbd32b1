"""The operators that users chain, and their compilation into one function for each task."""
