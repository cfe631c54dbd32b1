"""What a table version is made from, when that is safe, and what is recorded of it; pure. Imports ``engine``."""
