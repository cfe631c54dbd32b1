"""The demonstration: the whole path on real flights, with a processor killed on the way, verified to the last key."""
