"""The control room: who calls what, and when."""
