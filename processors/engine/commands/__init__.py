"""Work that only the owner of state may do: clear, adopt, reseed, read up to a bound. Imports ``runtime``."""
