"""The outside world: one adapter per vendor library, and the settings that say where it is."""
