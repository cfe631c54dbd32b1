"""The demo: real flights through every part, with a processor killed on the way and every result verified."""
