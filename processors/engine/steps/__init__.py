"""What every step of a stream is, and what steps have in common. Imports no join, window or aggregate."""
